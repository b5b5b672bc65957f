-- The hot path, beside the rows it locks: one call, one round trip, one transaction.
--
-- Order in which rows are locked, everywhere: holds, generations, budgets (leaf to root), tasks,
-- steps, audit heads. All functions run as their caller, under row-level security, unless they
-- say security definer.

-- Errors: OV001 not admitted, OV002 already settled, OV003 not found, OV004 gap in the journal.

-- Appends one event under the task's own counter and wakes the listeners. The counter moves only
-- when the row is really new, so there are neither gaps nor repeats.
create function push_event(
    p_organisation uuid, p_task uuid, p_step int, p_type text, p_payload jsonb, p_dedupe text
) returns bigint
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    number bigint;
begin
    select t.next_event into number from tasks t
     where t.organisation_id = p_organisation and t.task_id = p_task
       for no key update;
    if not found then
        raise exception 'no such task' using errcode = 'OV003';
    end if;
    insert into task_events (organisation_id, task_id, seq, step, type, payload, dedupe)
    values (p_organisation, p_task, number, p_step, p_type, p_payload, p_dedupe)
    on conflict (organisation_id, task_id, dedupe) do nothing;
    if not found then
        return null;
    end if;
    update tasks set next_event = number + 1
     where organisation_id = p_organisation and task_id = p_task;
    perform pg_notify('overline_task', p_task::text);
    return number;
end $$;

-- The audit chain of one organisation. Definer: the processes may append, and nothing else.
-- The tenant comes from the transaction, not from an argument.
create function audit_append(p_actor text, p_action text, p_subject text, p_detail jsonb)
    returns bigint
    language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    tenant uuid := current_setting('overline.organisation_id')::uuid;
    head   record;
    moment timestamptz := clock_timestamp();
    hash   bytea;
begin
    insert into audit_heads (organisation_id, seq, digest)
    values (tenant, 0, sha256(convert_to(tenant::text, 'UTF8')))
    on conflict do nothing;
    select h.seq, h.digest into head from audit_heads h
     where h.organisation_id = tenant for update;
    hash := audit_digest(head.digest, head.seq + 1, moment, p_actor, p_action, p_subject, p_detail);
    insert into audit_log
        (organisation_id, seq, at, actor, action, subject, detail, previous, digest)
    values (tenant, head.seq + 1, moment, p_actor, p_action, p_subject, p_detail, head.digest, hash);
    update audit_heads h set seq = head.seq + 1, digest = hash where h.organisation_id = tenant;
    return head.seq + 1;
end $$;

-- The bytes that are hashed: a JSON array, whose text PostgreSQL writes in one way only.
create function audit_digest(
    previous bytea, seq bigint, at timestamptz, actor text, action text, subject text, detail jsonb
) returns bytea
    language sql stable set search_path = pg_catalog, pg_temp as $$
    select sha256(previous || convert_to(jsonb_build_array(
        seq, to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'),
        actor, action, subject, detail)::text, 'UTF8'))
$$;

-- The first sequence number at which an organisation's chain is broken, or null. A tail cut off
-- shows because the head remembers how far the chain went.
create function audit_verify() returns bigint
    language sql stable set search_path = pg_catalog, public, pg_temp as $$
    with tenant as (select current_setting('overline.organisation_id')::uuid as id),
    chain as (
        select l.*, row_number() over (order by l.seq) as expected,
               lag(l.digest, 1, sha256(convert_to((select id from tenant)::text, 'UTF8')))
                   over (order by l.seq) as before
          from audit_log l where l.organisation_id = (select id from tenant)
    ),
    head as (
        select h.seq, h.digest from audit_heads h
         where h.organisation_id = (select id from tenant)
    )
    select min(bad) from (
        select least(seq, expected) as bad from chain
         where seq <> expected or previous <> before
            or digest <> audit_digest(previous, seq, at, actor, action, subject, detail)
        union all
        select (select coalesce(max(seq), 0) from chain) + 1 from head
         where head.seq > (select coalesce(max(seq), 0) from chain)
        union all
        select head.seq from head join chain on chain.seq = head.seq
         where chain.digest <> head.digest
        union all
        select min(seq) from chain where not exists (select from head)
    ) findings
$$;

-- Who holds this token? Definer: the caller has no tenant yet. Says which way it failed, for the
-- logs; the answer on the wire is the same.
create function authenticate(p_key uuid, p_digest bytea)
    returns table (organisation_id uuid, team_id uuid, scopes text[], verdict text)
    language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select k.organisation_id, k.team_id, k.scopes,
           case when k.secret_hash <> p_digest then 'wrong_secret'
                when not k.enabled then 'disabled'
                when k.expires_at <= now() then 'expired'
                else 'ok' end
      from api_keys k where k.key_id = p_key
$$;
revoke execute on function authenticate(uuid, bytea) from public;

-- Tasks accepted but never started: their caller was told 202, so somebody must start them.
create function unstarted_tasks(p_older_than interval, p_limit int)
    returns table (organisation_id uuid, team_id uuid, key_id uuid, task_id uuid, route text,
                   input jsonb, user_id text, tags jsonb, created_at timestamptz)
    language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select t.organisation_id, t.team_id, t.key_id, t.task_id, t.route, t.input, t.user_id, t.tags,
           t.created_at
      from tasks t
     where t.status = 'accepted' and t.run_id is null and t.created_at < now() - p_older_than
     order by t.created_at limit p_limit
$$;
revoke execute on function unstarted_tasks(interval, int) from public;

-- Files a task, or finds the first one of the same idempotency key.
create function submit_task(
    p_organisation uuid, p_team uuid, p_key uuid, p_task uuid, p_idempotency_key text,
    p_digest text, p_input jsonb, p_user text, p_tags jsonb, p_route text,
    p_worst_case numeric, p_max_cost numeric,
    out task_id uuid, out created boolean, out conflict boolean,
    out code text, out scope text, out limit_usd numeric, out spent_usd numeric,
    out held_usd numeric
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    first record;
    b     record;
begin
    created := false;
    conflict := false;
    if p_idempotency_key is not null then
        select t.task_id as id, t.request_digest into first from tasks t
         where t.organisation_id = p_organisation and t.key_id = p_key
           and t.idempotency_key = p_idempotency_key;
        if found then
            task_id := first.id;
            conflict := first.request_digest <> p_digest;
            return;
        end if;
    end if;

    for b in
        select 'task' as scope, p_max_cost as cap_usd, 0::numeric as spent, 0::numeric as held,
               0 as depth
         where p_max_cost is not null
        union all
        select g.scope, g.cap_usd, g.spent_usd + g.overage_usd, g.held_usd, g.depth
          from budgets g
         where g.organisation_id = p_organisation
           and g.scope_id = any (array[p_key, p_team, p_organisation]) and g.cap_usd is not null
         order by depth
    loop
        if b.spent + b.held + p_worst_case > b.cap_usd then
            code := 'budget_exceeded';
            scope := b.scope;
            limit_usd := b.cap_usd;
            spent_usd := b.spent;
            held_usd := b.held;
            return;
        end if;
    end loop;

    insert into tasks (organisation_id, task_id, team_id, key_id, workflow_id, idempotency_key,
                       request_digest, route, input, user_id, tags, worst_case_usd, max_cost_usd)
    values (p_organisation, p_task, p_team, p_key, 'task-' || p_task, p_idempotency_key,
            p_digest, p_route, p_input, p_user, p_tags, p_worst_case, p_max_cost)
    on conflict do nothing;
    if not found then
        -- Somebody filed the same request at the same moment, or this very statement ran before.
        select t.task_id, t.request_digest <> p_digest into task_id, conflict from tasks t
         where t.organisation_id = p_organisation
           and (t.task_id = p_task
                or (t.key_id = p_key and t.idempotency_key = p_idempotency_key));
        return;
    end if;
    if p_max_cost is not null then
        insert into budgets (organisation_id, scope, scope_id, cap_usd)
        values (p_organisation, 'task', p_task, p_max_cost);
    end if;
    perform push_event(p_organisation, p_task, null, 'task.accepted', '{}', 'task.accepted');
    task_id := p_task;
    created := true;
end $$;

-- May this call happen, and is its worst case covered at every level above it?
create function admit(
    p_organisation uuid, p_team uuid, p_key uuid, p_task uuid, p_step int, p_call_key text,
    p_amount numeric,
    out hold_id uuid, out code text, out scope text, out limit_usd numeric, out spent_usd numeric,
    out held_usd numeric
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    k    record;
    b    record;
    t    record;
    held uuid[] := '{}';
begin
    select h.hold_id into hold_id from holds h
     where h.organisation_id = p_organisation and h.call_key = p_call_key;
    if found then
        return;
    end if;

    select a.enabled, a.expires_at into k from api_keys a
     where a.organisation_id = p_organisation and a.key_id = p_key and a.team_id = p_team;
    code := case when not found then 'key_unknown'
                 when not k.enabled then 'key_disabled'
                 when k.expires_at <= now() then 'key_expired' end;
    if code is not null then
        scope := 'key';
        return;
    end if;
    select s.status into t from tasks s
     where s.organisation_id = p_organisation and s.task_id = p_task;
    if not found then
        raise exception 'no such task' using errcode = 'OV003';
    end if;
    if t.status not in ('accepted', 'running') then
        code := 'task_' || t.status;
        scope := 'task';
        return;
    end if;

    -- Every level is locked and checked before any is changed: a refusal leaves no trace.
    for b in
        select g.budget_id, g.scope, g.cap_usd, g.held_usd, g.spent_usd + g.overage_usd as spent
          from budgets g
         where g.organisation_id = p_organisation
           and g.scope_id = any (array[p_task, p_key, p_team, p_organisation])
         order by g.depth
           for no key update
    loop
        if b.spent + b.held_usd + p_amount > b.cap_usd then
            code := 'budget_exceeded';
            scope := b.scope;
            limit_usd := b.cap_usd;
            spent_usd := b.spent;
            held_usd := b.held_usd;
            return;
        end if;
        held := held || b.budget_id;
    end loop;

    insert into holds
        (organisation_id, call_key, task_id, team_id, key_id, step, amount_usd, budget_ids)
    values (p_organisation, p_call_key, p_task, p_team, p_key, p_step, p_amount, held)
    on conflict (organisation_id, call_key) do nothing
    returning holds.hold_id into hold_id;
    if not found then
        -- The same call was admitted while this one waited for the budgets.
        select h.hold_id into hold_id from holds h
         where h.organisation_id = p_organisation and h.call_key = p_call_key;
        return;
    end if;
    update budgets g set held_usd = g.held_usd + p_amount
     where g.organisation_id = p_organisation and g.budget_id = any (held);

    update tasks s
       set status = 'running', started_at = coalesce(s.started_at, now()),
           steps = greatest(s.steps, p_step)
     where s.organisation_id = p_organisation and s.task_id = p_task;
    insert into steps (organisation_id, task_id, step, call_key)
    values (p_organisation, p_task, p_step, p_call_key)
    on conflict do nothing;
    perform push_event(p_organisation, p_task, p_step, 'step.started', '{}',
                       'step.' || p_step || '.started');
end $$;

-- Keeps the assembled prompt of one candidate. Once an attempt has begun, the prompt stands.
create function stage_prompt(
    p_organisation uuid, p_generation_key text, p_call_key text, p_candidate int,
    p_workflow text, p_task uuid, p_step int, p_channel text, p_model text, p_model_version text,
    p_tokenizer_version text, p_deployment text, p_prompt_ids bytea, p_provenance jsonb
) returns void
    language sql set search_path = pg_catalog, public, pg_temp as $$
    insert into generations as g
        (organisation_id, generation_key, call_key, candidate, workflow_id, task_id, step, channel,
         model, model_version, tokenizer_version, deployment, prompt_ids, provenance)
    values (p_organisation, p_generation_key, p_call_key, p_candidate, p_workflow, p_task, p_step,
            p_channel, p_model, p_model_version, p_tokenizer_version, p_deployment, p_prompt_ids,
            p_provenance)
    on conflict (organisation_id, generation_key) do update
       set channel = excluded.channel, model = excluded.model,
           model_version = excluded.model_version,
           tokenizer_version = excluded.tokenizer_version, deployment = excluded.deployment,
           prompt_ids = excluded.prompt_ids, provenance = excluded.provenance
     where g.epoch = 0
$$;

-- Opens the next attempt of a generation, fences every earlier one, and returns what they left.
create function begin_attempt(
    p_organisation uuid, p_generation_key text, p_replica text, p_temporal_attempt int,
    p_trace text,
    out epoch int, out prompt_ids bytea, out generated_ids int4[], out generated_text text,
    out next_seq int, out finished jsonb, out unresolved jsonb, out channel text, out model text,
    out model_version text, out tokenizer_version text, out deployment text
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    g     record;
    state text;
begin
    select * into g from generations x
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key
       for no key update;
    if not found then
        raise exception 'no such generation' using errcode = 'OV003';
    end if;

    prompt_ids := g.prompt_ids;
    channel := g.channel;
    model := g.model;
    model_version := g.model_version;
    tokenizer_version := g.tokenizer_version;
    deployment := g.deployment;
    next_seq := g.next_seq;
    select coalesce(array_agg(i.id order by c.seq, i.n), '{}') into generated_ids
      from token_chunks c, unnest(c.token_ids) with ordinality as i (id, n)
     where c.organisation_id = p_organisation and c.step_key = p_generation_key
       and c.epoch > g.restarted_after;
    select coalesce(string_agg(c.text, '' order by c.seq), '') into generated_text
      from token_chunks c
     where c.organisation_id = p_organisation and c.step_key = p_generation_key
       and c.epoch > g.restarted_after;
    select coalesce(jsonb_agg(jsonb_build_object(
               'epoch', a.epoch, 'request_id', a.request_id, 'replica', a.replica,
               'journaled_tokens', a.journaled_tokens) order by a.epoch), '[]')
      into unresolved
      from generation_attempts a
     where a.organisation_id = p_organisation and a.generation_key = p_generation_key
       and a.outcome is null;

    if g.outcome is not null then
        -- Finished before (the worker died between the last token and its report).
        select jsonb_build_object(
                   'finish_reason', g.finish_reason, 'stop_reason', g.stop_reason,
                   'prompt_tokens', octet_length(g.prompt_ids) / 4,
                   'cached_tokens', coalesce((array_agg(a.cached_tokens order by a.epoch)
                       filter (where a.epoch > g.restarted_after
                                 and (a.journaled_tokens > 0 or a.outcome = 'succeeded')))[1], 0),
                   'completion_tokens', coalesce(sum(case when a.outcome = 'succeeded'
                       then a.completion_tokens else a.journaled_tokens end)
                       filter (where a.epoch > g.restarted_after), 0),
                   'queue_ms', (array_agg(a.queue_ms order by a.epoch desc))[1],
                   'first_token_ms', (array_agg(a.first_token_ms order by a.epoch desc))[1],
                   'duration_ms', (array_agg(a.duration_ms order by a.epoch desc))[1])
          into finished
          from generation_attempts a
         where a.organisation_id = p_organisation and a.generation_key = p_generation_key;
        epoch := g.epoch;
        return;
    end if;

    select h.state into state from holds h
     where h.organisation_id = p_organisation and h.call_key = g.call_key;
    if not found then
        raise exception 'the call was never admitted' using errcode = 'OV001';
    elsif state <> 'held' then
        raise exception 'the call is settled' using errcode = 'OV002';
    end if;

    epoch := g.epoch + 1;
    update generations x set epoch = g.epoch + 1, state = 'running'
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key;
    insert into generation_attempts
        (organisation_id, generation_key, epoch, call_key, request_id, replica, temporal_attempt,
         trace_id)
    values (p_organisation, p_generation_key, g.epoch + 1, g.call_key,
            p_generation_key || '@' || (g.epoch + 1), p_replica, p_temporal_attempt, p_trace);

    if g.epoch = 0 and g.candidate > 0 and exists (
        select from generations o
         where o.organisation_id = p_organisation and o.call_key = g.call_key
           and o.candidate < g.candidate and o.next_seq > 0)
    then
        -- Another model takes over after some text was already shown: readers start afresh.
        perform push_event(p_organisation, g.task_id, g.step, 'reset',
            jsonb_build_object('step', g.step, 'epoch', 1, 'candidate', g.candidate,
                               'reason', 'fallback'),
            'reset.' || p_generation_key);
    end if;
end $$;

-- Writes one chunk if this epoch is still the newest. Repeating a chunk is harmless.
create function append_chunk(
    p_organisation uuid, p_generation_key text, p_epoch int, p_seq int, p_token_ids int4[],
    p_text text
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    g      record;
    number bigint;
begin
    select x.epoch, x.next_seq, x.state, x.workflow_id, x.task_id into g from generations x
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key
       for no key update;
    if not found then
        raise exception 'no such generation' using errcode = 'OV003';
    end if;
    if g.epoch <> p_epoch or g.state <> 'running' then
        return false;
    end if;
    if p_seq < g.next_seq then
        return exists (select from token_chunks c
                        where c.organisation_id = p_organisation
                          and c.step_key = p_generation_key
                          and c.seq = p_seq and c.epoch = p_epoch);
    elsif p_seq > g.next_seq then
        raise exception 'chunk % offered, % expected', p_seq, g.next_seq using errcode = 'OV004';
    end if;
    update tasks t set next_event = t.next_event + 1
     where t.organisation_id = p_organisation and t.task_id = g.task_id
    returning t.next_event - 1 into number;
    insert into token_chunks (organisation_id, workflow_id, step_key, seq, epoch, task_id,
                              event_seq, token_ids, text)
    values (p_organisation, g.workflow_id, p_generation_key, p_seq, p_epoch, g.task_id, number,
            p_token_ids, p_text);
    update generations x set next_seq = p_seq + 1
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key;
    update generation_attempts a
       set journaled_tokens = a.journaled_tokens + coalesce(array_length(p_token_ids, 1), 0)
     where a.organisation_id = p_organisation and a.generation_key = p_generation_key
       and a.epoch = p_epoch;
    perform pg_notify('overline_task', g.task_id::text);
    return true;
end $$;

-- Closes one attempt with what the engine (or, failing that, the journal) says it used.
create function resolve_attempt(
    p_organisation uuid, p_generation_key text, p_epoch int, p_outcome text, p_cause text,
    p_error_code text, p_prompt int, p_cached int, p_completion int, p_source text,
    p_queue_ms float8, p_first_token_ms float8, p_duration_ms float8
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    update generation_attempts a
       set outcome = p_outcome, cause = p_cause, error_code = p_error_code,
           -- Never refuse a report over its figures: a count below what is already written down
           -- is raised to it, a cached part is never more than the whole.
           prompt_tokens = greatest(p_prompt, 0),
           cached_tokens = least(greatest(p_cached, 0), greatest(p_prompt, 0)),
           completion_tokens = greatest(p_completion, a.journaled_tokens),
           usage_source = p_source, queue_ms = p_queue_ms, first_token_ms = p_first_token_ms,
           duration_ms = p_duration_ms, ended_at = clock_timestamp()
     where a.organisation_id = p_organisation and a.generation_key = p_generation_key
       and a.epoch = p_epoch and a.outcome is null;
    return found;
end $$;

-- The last chunk and the end of an attempt, in one.
create function finish_attempt(
    p_organisation uuid, p_generation_key text, p_epoch int, p_seq int, p_token_ids int4[],
    p_text text, p_prompt int, p_cached int, p_completion int, p_source text,
    p_finish_reason text, p_stop_reason text, p_queue_ms float8, p_first_token_ms float8,
    p_duration_ms float8, p_outcome text, p_error_code text, p_cause text
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    g record;
begin
    select x.epoch, x.state, x.outcome into g from generations x
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key
       for no key update;
    if not found then
        raise exception 'no such generation' using errcode = 'OV003';
    end if;
    if g.epoch <> p_epoch then
        return false;
    end if;
    if g.state <> 'running' then
        -- A repeat of the report that was already taken down is confirmed, a late one is not.
        return exists (select from generation_attempts a
                        where a.organisation_id = p_organisation
                          and a.generation_key = p_generation_key
                          and a.epoch = p_epoch and a.outcome = p_outcome);
    end if;
    if p_text <> '' or coalesce(array_length(p_token_ids, 1), 0) > 0 then
        if not append_chunk(p_organisation, p_generation_key, p_epoch, p_seq, p_token_ids, p_text)
        then
            return false;
        end if;
    end if;
    perform resolve_attempt(p_organisation, p_generation_key, p_epoch, p_outcome, p_cause,
        p_error_code, p_prompt, p_cached, p_completion, p_source, p_queue_ms, p_first_token_ms,
        p_duration_ms);
    -- Only success ends a generation. After a failure, or when its worker was asked to stop, the
    -- next attempt goes on; a call that is really over is closed by its settlement.
    update generations x
       set state = 'finished',
           outcome = case p_outcome when 'succeeded' then p_outcome end,
           finish_reason = p_finish_reason, stop_reason = p_stop_reason,
           finished_at = case p_outcome when 'succeeded' then clock_timestamp() end
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key;
    return true;
end $$;

-- What was written before cannot be continued (other model, other grammar): begin anew, under an
-- epoch of its own, so that the engine is never asked twice under one request id. The earlier
-- tokens stay in the journal and become waste. No row: fenced.
create function restart_generation(
    p_organisation uuid, p_generation_key text, p_epoch int, p_reason text
) returns table (epoch int, prompt_ids bytea, generated_ids int4[], generated_text text,
                 next_seq int, finished jsonb, unresolved jsonb, channel text, model text,
                 model_version text, tokenizer_version text, deployment text)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    g record;
    a record;
begin
    select x.epoch, x.state, x.task_id, x.step into g from generations x
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key
       for no key update;
    if not found then
        raise exception 'no such generation' using errcode = 'OV003';
    end if;
    if g.epoch <> p_epoch or g.state <> 'running' then
        return;
    end if;
    select x.replica, x.temporal_attempt, x.trace_id into a from generation_attempts x
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key
       and x.epoch = p_epoch;
    perform resolve_attempt(p_organisation, p_generation_key, p_epoch, 'failed', p_reason,
                            p_reason, 0, 0, 0, 'engine', null, null, null);
    update generations x set restarted_after = p_epoch
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key;
    perform push_event(p_organisation, g.task_id, g.step, 'reset',
        jsonb_build_object('step', g.step, 'epoch', p_epoch + 1, 'reason', p_reason),
        'reset.' || p_generation_key || '@' || p_epoch);
    return query select * from begin_attempt(p_organisation, p_generation_key, a.replica,
                                             a.temporal_attempt, a.trace_id);
end $$;

-- Settles whatever a task still has open, with nothing billed. All of it is fenced before any of
-- it is settled, so that no chunk in flight waits for the task row while we wait for its journal.
create function close_open_calls(
    p_organisation uuid, p_task uuid, p_status text, p_except text default null
) returns void
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    h record;
begin
    perform from holds x
      where x.organisation_id = p_organisation and x.task_id = p_task and x.state = 'held'
       and x.call_key is distinct from p_except
      order by x.call_key for no key update;
    if not found then
        return;
    end if;
    update generations g set state = 'settled'
      from holds x
     where x.organisation_id = p_organisation and x.task_id = p_task and x.state = 'held'
       and x.call_key is distinct from p_except
       and g.organisation_id = p_organisation and g.call_key = x.call_key;
    for h in
        select x.step, x.call_key from holds x
         where x.organisation_id = p_organisation and x.task_id = p_task and x.state = 'held'
       and x.call_key is distinct from p_except
         order by x.call_key
    loop
        perform settle(p_organisation, p_task, h.step, h.call_key,
            case p_status when 'cancelled' then 'cancelled' else 'failed' end,
            null, null, null, null, null, null, null, null, null, null, null, null, null, null);
    end loop;
end $$;

-- The end of a task, once. Calls still open are settled first, with nothing billed.
create function finish_task(
    p_organisation uuid, p_task uuid, p_status text, p_answer text, p_error jsonb
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    current text;
begin
    perform close_open_calls(p_organisation, p_task, p_status);
    select t.status into current from tasks t
     where t.organisation_id = p_organisation and t.task_id = p_task for no key update;
    if not found then
        raise exception 'no such task' using errcode = 'OV003';
    end if;
    if current in ('succeeded', 'failed', 'cancelled', 'discarded') then
        return false;
    end if;
    update tasks t
       set status = p_status, answer = p_answer, error = p_error, finished_at = now()
     where t.organisation_id = p_organisation and t.task_id = p_task;
    perform push_event(p_organisation, p_task, null, 'task.' || p_status,
        (select jsonb_strip_nulls(jsonb_build_object(
            'answer', p_answer, 'error', p_error, 'steps', t.steps,
            'usage', jsonb_build_object('prompt_tokens', t.prompt_tokens,
                'completion_tokens', t.completion_tokens, 'cached_tokens', t.cached_tokens),
            'cost', jsonb_build_object('billed_usd', t.billed_usd::text,
                'waste_usd', t.waste_usd::text, 'saved_usd', t.saved_usd::text)))
           from tasks t where t.organisation_id = p_organisation and t.task_id = p_task),
        'task.finished');
    return true;
end $$;

-- Books every attempt of a call, releases its hold, charges the budgets, and tells the readers.
--
-- Billed are the useful tokens of the winning generation: the prompt once, as the first attempt
-- that produced anything read it, and each output token that reached the journal (all of them for
-- the attempt that finished). Everything else was paid for and thrown away: waste, with its cause,
-- in the ledger but on nobody's budget. Nothing here depends on amounts being small enough: what
-- exceeds the hold goes to overage.
create function settle(
    p_organisation uuid, p_task uuid, p_step int, p_call_key text, p_outcome text, p_winner text,
    p_decision jsonb, p_provenance jsonb, p_text text, p_tool_call jsonb, p_finish_reason text,
    p_cache_key text, p_cache_collections uuid[], p_cache_ttl_s float8, p_cache_hit uuid,
    p_finish_status text, p_finish_answer text, p_finish_error jsonb, p_trace text,
    out billed_usd numeric, out waste_usd numeric, out saved_usd numeric, out overage_usd numeric,
    out prompt_tokens int, out completion_tokens int, out cached_tokens int,
    out already_settled boolean
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    h         record;
    t         record;
    sums      record;
    hit_model   text;
    hit_version text;
    hit_worth   numeric;
    -- Callers need not carry a long text through their own history: the journal has it, or the
    -- cache entry that answered.
    v_text      text := p_text;
    v_tool_call jsonb := p_tool_call;
    v_finish    text := p_finish_reason;
    win       record;
    unpriced  bigint := 0;
begin
    select * into h from holds x
     where x.organisation_id = p_organisation and x.call_key = p_call_key
       for no key update;
    if not found then
        raise exception 'the call was never admitted' using errcode = 'OV001';
    end if;
    if h.state = 'settled' then
        billed_usd := h.billed_usd;
        waste_usd := h.waste_usd;
        saved_usd := h.saved_usd;
        overage_usd := h.overage_usd;
        prompt_tokens := h.prompt_tokens;
        completion_tokens := h.completion_tokens;
        cached_tokens := h.cached_tokens;
        already_settled := true;
        return;
    end if;
    already_settled := false;
    saved_usd := 0;
    select s.user_id, s.tags, s.route, s.workflow_id, s.run_id into t from tasks s
     where s.organisation_id = p_organisation and s.task_id = h.task_id;

    -- From here no attempt of this call can write any more.
    update generations g set state = 'settled'
     where g.organisation_id = p_organisation and g.call_key = p_call_key;
    if p_finish_status is not null then
        -- Before the task row is locked, for the order of locks; this call is not among them.
        perform close_open_calls(p_organisation, h.task_id, p_finish_status, p_call_key);
    end if;

    if exists (select from generations g
                where g.organisation_id = p_organisation and g.call_key = p_call_key) then
        with attempts as (
            select a.*, g.candidate, g.model, g.model_version, g.deployment,
                   coalesce(g.generation_key = p_winner, false) as won,
                   a.epoch > g.restarted_after as kept,
                   coalesce(a.completion_tokens, a.journaled_tokens) as output,
                   coalesce(a.prompt_tokens, case when a.journaled_tokens > 0
                       then octet_length(g.prompt_ids) / 4 else 0 end) as input,
                   coalesce(a.cached_tokens, 0) as cached
              from generation_attempts a
              join generations g using (organisation_id, generation_key)
             where a.organisation_id = p_organisation and a.call_key = p_call_key
        ), useful as (
            select a.*,
                   case when won and kept
                        then case when a.outcome = 'succeeded' then output
                                  else least(journaled_tokens, output) end
                        else 0 end as useful_output,
                   won and kept and a.epoch = min(a.epoch)
                       filter (where won and kept
                                 and (journaled_tokens > 0 or a.outcome = 'succeeded'))
                       over (partition by a.generation_key) as carries_prompt
              from attempts a
        ), priced as (
            select u.*, p.input_usd_per_million as pi, p.cached_input_usd_per_million as pc,
                   p.output_usd_per_million as po,
                   case when coalesce(carries_prompt, false) then input - cached else 0 end as ui,
                   case when coalesce(carries_prompt, false) then cached else 0 end as uc,
                   round(coalesce(((input - cached) * p.input_usd_per_million
                       + cached * p.cached_input_usd_per_million
                       + output * p.output_usd_per_million) / 1000000, 0), 9) as cost
              from useful u
              left join lateral (
                   select * from prices x
                    where x.model = u.model and x.valid_from <= u.started_at
                    order by x.valid_from desc limit 1) p on true
        ), charged as (
            select c.*, least(c.cost, round(coalesce(
                       (ui * pi + uc * pc + useful_output * po) / 1000000, 0), 9)) as billed
              from priced c
        ), booked as (
            insert into model_calls
                (organisation_id, started_at, ended_at, team_id, key_id, user_id, tags, task_id,
                 workflow_id, run_id, trace_id, step, call_key, candidate, epoch, request_id,
                 route, model, model_version, deployment, replica, outcome, waste_cause,
                 error_code, uncached_input_tokens, cached_input_tokens, output_tokens,
                 wasted_uncached_input_tokens, wasted_cached_input_tokens, wasted_output_tokens,
                 input_usd_per_million, cached_input_usd_per_million, output_usd_per_million,
                 cost_usd, billed_usd, waste_usd, usage_source, queue_ms, first_token_ms,
                 duration_ms)
            select p_organisation, c.started_at, coalesce(c.ended_at, clock_timestamp()),
                   h.team_id, h.key_id, t.user_id, t.tags, h.task_id, t.workflow_id, t.run_id,
                   coalesce(c.trace_id, p_trace), h.step, p_call_key, c.candidate, c.epoch,
                   c.request_id, t.route, c.model, c.model_version, c.deployment, c.replica,
                   coalesce(c.outcome, 'lost'),
                   case when input + output = ui + uc + useful_output then null
                        when not won then coalesce(c.cause,
                            case when p_winner is not null then 'fallback'
                                 when p_outcome = 'cancelled' then 'cancelled'
                                 else 'failed' end)
                        when not kept then 'restarted'
                        when c.outcome is distinct from 'succeeded'
                            then coalesce(c.cause, case c.outcome when 'cancelled'
                                then 'cancelled' else 'interrupted' end)
                        else 'resumed' end,
                   c.error_code, input - cached, cached, output,
                   input - cached - ui, cached - uc, output - useful_output,
                   pi, pc, po, cost, billed, cost - billed,
                   coalesce(c.usage_source, 'journal'), c.queue_ms, c.first_token_ms,
                   c.duration_ms
              from charged c
            returning model_calls.billed_usd as billed, model_calls.waste_usd as waste
        )
        select (select coalesce(sum(billed), 0) from booked) as billed,
               (select coalesce(sum(waste), 0) from booked) as waste,
               coalesce(sum(ui + uc), 0) as prompt, coalesce(sum(uc), 0) as cached,
               coalesce(sum(useful_output), 0) as output,
               count(*) filter (where pi is null) as unpriced
          into sums from charged;
        billed_usd := sums.billed;
        waste_usd := sums.waste;
        prompt_tokens := sums.prompt;
        cached_tokens := sums.cached;
        completion_tokens := sums.output;
        unpriced := sums.unpriced;
    else
        billed_usd := 0;
        waste_usd := 0;
        prompt_tokens := 0;
        cached_tokens := 0;
        completion_tokens := 0;
    end if;

    -- The words are in the journal, or in the entry that answered: nobody carries them here.
    if p_text is null and p_winner is not null then
        select coalesce(string_agg(c.text, '' order by c.seq), '') into p_text
          from generations g
          join token_chunks c on c.organisation_id = g.organisation_id
                             and c.step_key = g.generation_key and c.epoch > g.restarted_after
         where g.organisation_id = p_organisation and g.generation_key = p_winner;
    elsif p_text is null and p_cache_hit is not null then
        select e.text into p_text from cache_entries e
         where e.organisation_id = p_organisation and e.cache_entry_id = p_cache_hit;
    end if;
    if p_finish_status = 'succeeded' and p_finish_answer is null then
        p_finish_answer := p_text;
    end if;

    if p_outcome = 'cached' then
        update cache_entries e set hits = e.hits + 1
         where e.organisation_id = p_organisation and e.cache_entry_id = p_cache_hit
        returning e.model, e.model_version, e.billed_usd, coalesce(p_text, e.text),
                  coalesce(p_tool_call, e.tool_call), coalesce(p_finish_reason, e.finish_reason)
             into hit_model, hit_version, hit_worth, v_text, v_tool_call, v_finish;
        if found then
            saved_usd := hit_worth;
            insert into model_calls
                (organisation_id, started_at, ended_at, team_id, key_id, user_id, tags, task_id,
                 workflow_id, run_id, trace_id, step, call_key, candidate, epoch, route, model,
                 model_version, outcome, uncached_input_tokens, cached_input_tokens,
                 output_tokens, wasted_uncached_input_tokens, wasted_cached_input_tokens,
                 wasted_output_tokens, cost_usd, billed_usd, waste_usd, saved_usd, usage_source)
            values (p_organisation, h.created_at, clock_timestamp(), h.team_id, h.key_id,
                    t.user_id, t.tags, h.task_id, t.workflow_id, t.run_id, p_trace, h.step,
                    p_call_key, 0, 0, t.route, hit_model, hit_version, 'cached',
                    0, 0, 0, 0, 0, 0, 0, 0, 0, saved_usd, 'cache');
        end if;
    end if;

    select g.model, g.model_version, g.restarted_after into win from generations g
     where g.organisation_id = p_organisation and g.generation_key = p_winner;
    if v_text is null and p_winner is not null then
        select string_agg(c.text, '' order by c.seq) into v_text from token_chunks c
         where c.organisation_id = p_organisation and c.step_key = p_winner
           and c.epoch > win.restarted_after;
    end if;

    if p_cache_key is not null and p_outcome = 'succeeded' and win.model is not null then
        -- Only if nothing the answer rests on changed since the call was admitted: every change
        -- must have been visible to the admission, so what was read is what is there now.
        insert into cache_entries as e
            (organisation_id, key, text, tool_call, finish_reason, model, model_version,
             prompt_tokens, completion_tokens, billed_usd, revisions, catalogue_digest, task_id,
             expires_at)
        select p_organisation, p_cache_key, v_text, v_tool_call, v_finish, win.model,
               win.model_version, settle.prompt_tokens, settle.completion_tokens,
               settle.billed_usd,
               coalesce((select jsonb_object_agg(c.collection_id, c.revision) from collections c
                          where c.organisation_id = p_organisation
                            and c.collection_id = any (p_cache_collections)), '{}'),
               s.digest, h.task_id, now() + make_interval(secs => p_cache_ttl_s)
          from catalogue_state s
         where pg_visible_in_snapshot(s.changed_in, h.admitted_under)
           and not exists (
               select from collections c
                where c.organisation_id = p_organisation
                  and c.collection_id = any (p_cache_collections)
                  and not pg_visible_in_snapshot(c.revised_in, h.admitted_under))
        on conflict (organisation_id, key) do update
           set text = excluded.text, tool_call = excluded.tool_call,
               finish_reason = excluded.finish_reason, model = excluded.model,
               model_version = excluded.model_version, prompt_tokens = excluded.prompt_tokens,
               completion_tokens = excluded.completion_tokens, billed_usd = excluded.billed_usd,
               revisions = excluded.revisions, catalogue_digest = excluded.catalogue_digest,
               task_id = excluded.task_id, expires_at = excluded.expires_at, created_at = now();
    end if;

    overage_usd := greatest(billed_usd - h.amount_usd, 0);
    perform from budgets g
      where g.organisation_id = p_organisation and g.budget_id = any (h.budget_ids)
      order by g.depth for no key update;
    update budgets g
       set held_usd = g.held_usd - h.amount_usd,
           spent_usd = g.spent_usd + (settle.billed_usd - settle.overage_usd),
           overage_usd = g.overage_usd + settle.overage_usd
     where g.organisation_id = p_organisation and g.budget_id = any (h.budget_ids);
    update holds x
       set state = 'settled', settled_at = now(), outcome = p_outcome,
           billed_usd = settle.billed_usd, waste_usd = settle.waste_usd,
           saved_usd = settle.saved_usd, overage_usd = settle.overage_usd,
           prompt_tokens = settle.prompt_tokens, completion_tokens = settle.completion_tokens,
           cached_tokens = settle.cached_tokens
     where x.organisation_id = p_organisation and x.hold_id = h.hold_id;

    update tasks s
       set prompt_tokens = s.prompt_tokens + settle.prompt_tokens,
           completion_tokens = s.completion_tokens + settle.completion_tokens,
           cached_tokens = s.cached_tokens + settle.cached_tokens,
           billed_usd = s.billed_usd + settle.billed_usd,
           waste_usd = s.waste_usd + settle.waste_usd,
           saved_usd = s.saved_usd + settle.saved_usd
     where s.organisation_id = p_organisation and s.task_id = h.task_id;
    update steps s
       set status = p_outcome, model = coalesce(win.model, hit_model, s.model),
           decision = coalesce(p_decision, s.decision),
           provenance = coalesce(p_provenance, s.provenance), text = v_text,
           tool_call = v_tool_call, finish_reason = v_finish,
           prompt_tokens = s.prompt_tokens + settle.prompt_tokens,
           completion_tokens = s.completion_tokens + settle.completion_tokens,
           cached_tokens = s.cached_tokens + settle.cached_tokens,
           billed_usd = s.billed_usd + settle.billed_usd,
           waste_usd = s.waste_usd + settle.waste_usd,
           saved_usd = s.saved_usd + settle.saved_usd, ended_at = now()
     where s.organisation_id = p_organisation and s.task_id = h.task_id and s.step = h.step;

    if p_outcome = 'cached' and v_text <> '' then
        -- Nothing was generated, so nothing was streamed: give readers the words.
        perform push_event(p_organisation, h.task_id, h.step, 'text',
            jsonb_build_object('channel',
                case when v_tool_call is null then 'answer' else 'tool_call' end,
                'text', v_text, 'model', hit_model, 'cached', true),
            'text.' || p_call_key);
    end if;
    perform push_event(p_organisation, h.task_id, h.step, 'step.completed',
        jsonb_strip_nulls(jsonb_build_object(
            'step', h.step, 'outcome', p_outcome, 'model', coalesce(win.model, hit_model),
            'tool_call', v_tool_call, 'finish_reason', v_finish,
            'usage', jsonb_build_object('prompt_tokens', settle.prompt_tokens,
                'completion_tokens', settle.completion_tokens,
                'cached_tokens', settle.cached_tokens),
            'cost', jsonb_build_object('billed_usd', settle.billed_usd::text,
                'waste_usd', settle.waste_usd::text, 'saved_usd', settle.saved_usd::text))),
        'step.completed.' || p_call_key);
    if p_finish_status is not null then
        perform finish_task(p_organisation, h.task_id, p_finish_status,
            coalesce(p_finish_answer, case p_finish_status when 'succeeded' then v_text end),
            p_finish_error);
    end if;

    if overage_usd > 0 then
        perform audit_append('overline', 'settle.overage', p_call_key, jsonb_build_object(
            'hold_usd', h.amount_usd::text, 'billed_usd', settle.billed_usd::text,
            'overage_usd', settle.overage_usd::text));
    end if;
    if unpriced > 0 then
        perform audit_append('overline', 'settle.unpriced', p_call_key,
                             jsonb_build_object('attempts', unpriced));
    end if;
end $$;

-- Keeps one tool attempt; the first successful result becomes the step's.
create function record_tool_call(
    p_organisation uuid, p_task uuid, p_step int, p_call_id text, p_name text, p_attempt int,
    p_arguments jsonb, p_result text, p_ok boolean, p_error jsonb, p_started timestamptz,
    p_ended timestamptz
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    insert into tool_calls (organisation_id, task_id, call_id, attempt, step, name, arguments,
                            result_text, ok, error, started_at, ended_at)
    values (p_organisation, p_task, p_call_id, p_attempt, p_step, p_name, p_arguments, p_result,
            p_ok, p_error, p_started, p_ended)
    on conflict do nothing;
    if not found then
        return false;
    end if;
    perform push_event(p_organisation, p_task, p_step, 'tool.completed',
        jsonb_strip_nulls(jsonb_build_object('step', p_step, 'call_id', p_call_id,
            'name', p_name, 'attempt', p_attempt, 'ok', p_ok, 'error', p_error)),
        'tool.' || p_call_id || '.' || p_attempt);
    update steps s set tool_result = p_result
     where s.organisation_id = p_organisation and s.task_id = p_task and s.step = p_step
       and p_result is not null;
    return true;
end $$;

-- Makes a document's new version the one that is searched, drops the old one's chunks and tells
-- the caches: all at once, or not at all.
create function finish_document(
    p_organisation uuid, p_document uuid, p_version int, p_status text, p_error jsonb
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    d record;
begin
    select x.version, x.current_version, x.status, x.collection_id into d from documents x
     where x.organisation_id = p_organisation and x.document_id = p_document
       for no key update;
    if not found then
        raise exception 'no such document' using errcode = 'OV003';
    end if;
    if d.version <> p_version then
        return false;  -- a newer text arrived meanwhile: its own ingestion will finish it
    end if;
    if p_status <> 'ready' then
        update documents x set status = 'failed', error = p_error, updated_at = now()
         where x.organisation_id = p_organisation and x.document_id = p_document
           and x.current_version < p_version;
        return found;
    end if;
    if d.current_version = p_version then
        return true;
    end if;
    delete from chunks c
     where c.organisation_id = p_organisation and c.document_id = p_document
       and c.version <> p_version;
    update documents x
       set status = 'ready', error = null, current_version = p_version, updated_at = now(),
           chunk_count = (select count(*) from chunks c
                           where c.organisation_id = p_organisation
                             and c.document_id = p_document and c.version = p_version)
     where x.organisation_id = p_organisation and x.document_id = p_document;
    update collections c
       set revision = c.revision + 1, revised_in = pg_current_xact_id()
     where c.organisation_id = p_organisation and c.collection_id = d.collection_id;
    return true;
end $$;

revoke execute on function audit_append(text, text, text, jsonb) from public;
grant execute on function authenticate(uuid, bytea), unstarted_tasks(interval, int),
    audit_append(text, text, text, jsonb) to overline_app;

-- Definer functions belong to the one role that may look past the fence.
grant create on schema public to overline_definer;
alter function authenticate(uuid, bytea) owner to overline_definer;
alter function unstarted_tasks(interval, int) owner to overline_definer;
alter function audit_append(text, text, text, jsonb) owner to overline_definer;
revoke create on schema public from overline_definer;
