-- Calls that start without a workflow: durable in Postgres first, and Temporal's only when the
-- process that runs them dies.

-- squawk-ignore ban-drop-constraint
alter table tasks drop constraint tasks_kind_check;
-- squawk-ignore constraint-missing-not-valid
alter table tasks add constraint tasks_kind_check check (kind in ('agent', 'map', 'call'));

-- Processes that run calls. One renews itself about once a second for all its calls together, so
-- that a call costs no renewal of its own; it is nobody's, so it belongs to no organisation.
create table lane_processes (
    process_id uuid primary key,
    until      timestamptz not null
) with (fillfactor = 50);
grant select, insert, update, delete on lane_processes to overline_app;
grant select on lane_processes to overline_reader;

-- What is known of a call besides its task. `process_id` is whose it is now: null when it has ended,
-- or when its workflow has it.
create table calls (
    organisation_id uuid not null,
    task_id         uuid not null,
    process_id      uuid,
    endpoint        text not null,
    model           text not null,
    stored          boolean not null default true,
    answer          jsonb,
    usage           jsonb,
    created_at      timestamptz not null default now(),
    ended_at        timestamptz,
    primary key (organisation_id, task_id),
    foreign key (organisation_id, task_id) references tasks
) with (fillfactor = 70);
create index calls_by_process on calls (process_id) where process_id is not null;

-- What was refused before anything was done for it: the ledger of what did not happen. Append-only,
-- like the ledger of what did.
create table refused_calls (
    organisation_id uuid not null,
    refused_at      timestamptz not null default now(),
    refusal_id      uuid not null,
    team_id         uuid not null,
    key_id          uuid not null,
    user_id         text,
    tags            jsonb not null,
    endpoint        text not null,
    model           text not null,
    code            text not null,
    scope           text not null,
    needed_usd      numeric(18, 9),
    limit_usd       numeric(18, 9),
    spent_usd       numeric(18, 9),
    held_usd        numeric(18, 9),
    trace_id        text,
    primary key (organisation_id, refusal_id),
    foreign key (organisation_id, key_id) references api_keys
);
create index refused_calls_by_time on refused_calls (organisation_id, refused_at);
create trigger append_only before update or delete or truncate on refused_calls
    for each statement execute function refuse_change();

do $$
declare name text;
begin
    foreach name in array array['calls', 'refused_calls']
    loop
        execute format('alter table %I enable row level security', name);
        execute format('alter table %I force row level security', name);
        execute format($policy$
            create policy tenant on %I
                using      (organisation_id = current_setting('overline.organisation_id')::uuid)
                with check (organisation_id = current_setting('overline.organisation_id')::uuid)
            $policy$, name);
    end loop;
end $$;
grant select, insert, update on calls to overline_app;
grant select, insert on refused_calls to overline_app;
grant select on calls, refused_calls to overline_reader;
grant select on calls, lane_processes to overline_definer;

-- A whole answer: choices, tool calls, reasons. Set for entries of calls.
alter table cache_entries add column answer jsonb;

create view refusals_by_key with (security_invoker = true) as
    select r.organisation_id, r.key_id, r.code, r.scope, count(*) as refusals,
           min(r.refused_at) as first_at, max(r.refused_at) as last_at
      from refused_calls r group by r.organisation_id, r.key_id, r.code, r.scope;
grant select on refusals_by_key to overline_app, overline_reader;

-- Writes a task, its call and its first events; one statement each, with their final values. Not
-- done when the row is there already, or the idempotency key is another call's.
create function file_call(
    p_organisation uuid, p_team uuid, p_key uuid, p_task uuid, p_idempotency_key text,
    p_digest text, p_input jsonb, p_user text, p_tags jsonb, p_endpoint text, p_model text,
    p_route text, p_stored boolean, p_amount numeric, p_process uuid
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    insert into tasks (organisation_id, task_id, team_id, key_id, workflow_id, idempotency_key,
                       request_digest, route, input, user_id, tags, worst_case_usd, kind,
                       status, next_event, started_at)
    values (p_organisation, p_task, p_team, p_key, 'task-' || p_task, p_idempotency_key,
            p_digest, p_route, p_input, p_user, p_tags, p_amount, 'call', 'running', 2, now())
    on conflict do nothing;
    if not found then
        return false;
    end if;
    insert into task_events (organisation_id, task_id, seq, type, payload, dedupe)
    values (p_organisation, p_task, 1, 'task.accepted', '{}', 'task.accepted');
    insert into calls (organisation_id, task_id, process_id, endpoint, model, stored)
    values (p_organisation, p_task, p_process, p_endpoint, p_model, p_stored);
    return true;
end $$;

-- What a key that repeats itself is answered: the call it made the first time.
create function earlier_call(
    p_organisation uuid, p_key uuid, p_task uuid, p_idempotency_key text, p_digest text,
    out task_id uuid, out conflict boolean, out status text, out error jsonb, out answer jsonb,
    out usage jsonb, out model text, out created_at timestamptz, out billed_usd numeric
)
    language sql stable set search_path = pg_catalog, public, pg_temp as $$
    select t.task_id, t.request_digest <> p_digest or t.kind <> 'call', t.status, t.error, c.answer,
           c.usage, c.model, t.created_at, t.billed_usd
      from tasks t
      left join calls c on c.organisation_id = t.organisation_id and c.task_id = t.task_id
     where t.organisation_id = p_organisation
       and (t.task_id = p_task
            or (t.key_id = p_key and t.idempotency_key = p_idempotency_key))
     limit 1
$$;

-- A call that the cache answers: begun, charged with nothing, and over, in the same statement.
create function serve_cached_call(
    p_organisation uuid, p_team uuid, p_key uuid, p_task uuid, p_hit uuid, p_user text,
    p_tags jsonb, p_route text, p_trace text
) returns void
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    call_key text := p_task || ':1';
    e        record;
begin
    update cache_entries x set hits = x.hits + 1
     where x.organisation_id = p_organisation and x.cache_entry_id = p_hit
    returning x.model, x.model_version, x.text, x.finish_reason, x.billed_usd, x.answer into e;
    insert into model_calls
        (organisation_id, started_at, ended_at, team_id, key_id, user_id, tags, task_id,
         workflow_id, trace_id, step, call_key, candidate, epoch, route, model, model_version,
         outcome, uncached_input_tokens, cached_input_tokens, output_tokens,
         wasted_uncached_input_tokens, wasted_cached_input_tokens, wasted_output_tokens,
         cost_usd, billed_usd, waste_usd, saved_usd, usage_source)
    values (p_organisation, now(), clock_timestamp(), p_team, p_key, p_user, p_tags, p_task,
            'task-' || p_task, p_trace, 1, call_key, 0, 0, p_route, e.model, e.model_version,
            'cached', 0, 0, 0, 0, 0, 0, 0, 0, 0, e.billed_usd, 'cache');
    insert into steps (organisation_id, task_id, step, call_key, status, model, text,
                       finish_reason, saved_usd, ended_at)
    values (p_organisation, p_task, 1, call_key, 'cached', e.model, e.text, e.finish_reason,
            e.billed_usd, clock_timestamp());
    insert into task_events (organisation_id, task_id, seq, step, type, payload, dedupe)
    select p_organisation, p_task, v.seq, v.step, v.type, v.payload, v.dedupe
      from (values
        (2, 1, 'step.started', '{}'::jsonb, 'step.1.started'),
        (3, 1, 'text', jsonb_build_object('channel', 'answer', 'text', e.text, 'model', e.model,
                                          'cached', true), 'text.' || call_key),
        (4, 1, 'step.completed', jsonb_build_object('step', 1, 'outcome', 'cached', 'model',
             e.model, 'cost', jsonb_build_object('billed_usd', '0', 'waste_usd', '0',
                                                 'saved_usd', e.billed_usd::text)),
         'step.completed.' || call_key),
        (5, null, 'task.succeeded', jsonb_build_object('answer', e.text, 'steps', 1, 'cost',
             jsonb_build_object('billed_usd', '0', 'waste_usd', '0',
                                'saved_usd', e.billed_usd::text)), 'task.finished')
      ) v (seq, step, type, payload, dedupe);
    update tasks t
       set status = 'succeeded', answer = e.text, steps = 1, saved_usd = e.billed_usd,
           next_event = 6, finished_at = clock_timestamp()
     where t.organisation_id = p_organisation and t.task_id = p_task;
    update calls c
       set process_id = null, answer = e.answer, usage = e.answer -> 'usage', model = e.model,
           ended_at = clock_timestamp()
     where c.organisation_id = p_organisation and c.task_id = p_task;
    perform audit_append('ol_' || replace(p_key::text, '-', ''), 'call.cached', p_task::text,
                         jsonb_build_object('model', e.model, 'saved_usd', e.billed_usd::text));
end $$;

-- Opens one candidate of a call and its first attempt: its prompt, and who is asked.
create function begin_candidate(
    p_organisation uuid, p_task uuid, p_candidate int, p_model text, p_model_version text,
    p_tokenizer_version text, p_deployment text, p_replica text, p_prompt_ids bytea,
    p_likely_prompt int, p_trace text
) returns void
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    call_key text := p_task || ':1';
    own_key  text := call_key || '#' || p_candidate;
begin
    -- What an engine that reads text is asked is in the task's own row, and is not kept twice.
    insert into generations
        (organisation_id, generation_key, call_key, candidate, workflow_id, task_id, step, channel,
         model, model_version, tokenizer_version, deployment, prompt_ids, request, prompt_tokens,
         state, epoch)
    values (p_organisation, own_key, call_key, p_candidate, 'task-' || p_task, p_task, 1,
            'answer', p_model, p_model_version, p_tokenizer_version, p_deployment, p_prompt_ids,
            case when p_likely_prompt is not null then '' end, p_likely_prompt, 'running', 1);
    insert into generation_attempts
        (organisation_id, generation_key, epoch, call_key, request_id, replica, temporal_attempt,
         trace_id)
    values (p_organisation, own_key, 1, call_key, own_key || '@1', p_replica, 1, p_trace);
end $$;

-- Another candidate takes over before anything was said: the one before it is over.
create function next_candidate(
    p_organisation uuid, p_task uuid, p_candidate int, p_prompt int, p_cached int, p_completion int,
    p_source text, p_error_code text, p_model text, p_model_version text, p_tokenizer_version text,
    p_deployment text, p_replica text, p_prompt_ids bytea, p_likely_prompt int, p_trace text
) returns void
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    perform finish_attempt(p_organisation, p_task || ':1#' || (p_candidate - 1), 1, 0, '{}', '',
        p_prompt, p_cached, p_completion, p_source, null, null, null, null, null, 'failed',
        p_error_code, null);
    perform begin_candidate(p_organisation, p_task, p_candidate, p_model, p_model_version,
        p_tokenizer_version, p_deployment, p_replica, p_prompt_ids, p_likely_prompt, p_trace);
end $$;

-- The second round trip: how the attempt ended, what it cost, what was answered, the end of the
-- task. Fenced (no row): somebody else has taken the call over.
create function close_call(
    p_organisation uuid, p_task uuid, p_generation_key text, p_epoch int, p_seq int,
    p_token_ids int4[], p_text text, p_prompt int, p_cached int, p_completion int,
    p_reasoning int, p_source text, p_finish_reason text, p_stop_reason text, p_queue_ms float8, p_first_token_ms float8,
    p_duration_ms float8, p_outcome text, p_error_code text, p_error jsonb, p_decision jsonb,
    p_answer jsonb, p_usage jsonb, p_cache_key text, p_trace text
) returns table (billed_usd numeric, waste_usd numeric, prompt_tokens int, completion_tokens int,
                 cached_tokens int, already_settled boolean)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
#variable_conflict use_column
declare
    own_call text := p_task || ':1';
    h        record;
    c        record;
    said     text := p_answer #>> '{choices,0,text}';
begin
    -- The hold first, as everywhere: two ends of one call do not meet further down.
    select x.state, x.admitted_under into h from holds x
     where x.organisation_id = p_organisation and x.call_key = own_call for no key update;
    if not found then
        raise exception 'the call was never admitted' using errcode = 'OV001';
    end if;
    if h.state = 'held' then
        if not finish_attempt(p_organisation, p_generation_key, p_epoch, p_seq, p_token_ids, p_text,
                p_prompt, p_cached, p_completion, p_source, p_finish_reason, p_stop_reason,
                p_queue_ms, p_first_token_ms, p_duration_ms, p_outcome, p_error_code, null,
                p_reasoning)
        then
            return;
        end if;
        if p_outcome = 'cancelled' and p_source in ('upstream', 'estimate') then
            -- An engine without token ids: all it wrote went to the caller, and is what they owe.
            update generation_attempts a set journaled_tokens = a.completion_tokens
             where a.organisation_id = p_organisation and a.generation_key = p_generation_key
               and a.epoch = p_epoch;
        end if;
    end if;
    select * into c from settle(p_organisation, p_task, 1, own_call, p_outcome,
        case when p_outcome in ('succeeded', 'cancelled') then p_generation_key end,
        p_decision, null, said, null, p_finish_reason, null, '{}', null, null,
        p_outcome, said, p_error, p_trace);
    update calls x
       set process_id = null, answer = p_answer, usage = p_usage, ended_at = clock_timestamp()
     where x.organisation_id = p_organisation and x.task_id = p_task and x.ended_at is null;
    if p_cache_key is not null and p_outcome = 'succeeded' and not c.already_settled then
        insert into cache_entries
            (organisation_id, key, text, finish_reason, model, model_version, prompt_tokens,
             completion_tokens, billed_usd, revisions, catalogue_digest, task_id, answer)
        select p_organisation, p_cache_key, coalesce(said, ''), p_finish_reason, g.model,
               g.model_version, c.prompt_tokens, c.completion_tokens, c.billed_usd, '{}', s.digest,
               p_task, p_answer || jsonb_build_object('usage', p_usage)
          from generations g, catalogue_state s
         where g.organisation_id = p_organisation and g.generation_key = p_generation_key
           and pg_visible_in_snapshot(s.changed_in, h.admitted_under)
        on conflict (organisation_id, key) do update
           set text = excluded.text, finish_reason = excluded.finish_reason,
               model = excluded.model, model_version = excluded.model_version,
               prompt_tokens = excluded.prompt_tokens,
               completion_tokens = excluded.completion_tokens,
               billed_usd = excluded.billed_usd, revisions = excluded.revisions,
               catalogue_digest = excluded.catalogue_digest, task_id = excluded.task_id,
               answer = excluded.answer, expires_at = excluded.expires_at, created_at = now();
    end if;
    return query select c.billed_usd, c.waste_usd, c.prompt_tokens, c.completion_tokens,
                        c.cached_tokens, c.already_settled;
end $$;

-- Ends a call that nobody goes on with: its attempts are booked by what is known of them.
create function end_call(
    p_organisation uuid, p_task uuid, p_outcome text, p_winner text, p_error jsonb, p_trace text
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    perform from settle(p_organisation, p_task, 1, p_task || ':1', p_outcome, p_winner, null, null,
        null, null, p_outcome, null, '{}', null, null, p_outcome, null, p_error, p_trace);
    update calls c set process_id = null, ended_at = clock_timestamp()
     where c.organisation_id = p_organisation and c.task_id = p_task and c.ended_at is null;
    return found;
end $$;

-- Ends a call that was opened, if it was, though nobody heard of it: the connection was lost in
-- between. No engine was asked.
create function abandon_call(p_key uuid, p_digest bytea, p_task uuid) returns void
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    k record;
begin
    select * into k from authenticate(p_key, p_digest);
    if not found or k.verdict = 'wrong_secret' then
        return;
    end if;
    perform set_config('overline.organisation_id', k.organisation_id::text, true);
    if exists (select from calls c where c.organisation_id = k.organisation_id
                and c.task_id = p_task and c.ended_at is null)
    then
        perform finish_task(k.organisation_id, p_task, 'cancelled', null, null);
        update calls c set process_id = null, ended_at = clock_timestamp()
         where c.organisation_id = k.organisation_id and c.task_id = p_task;
    end if;
end $$;

-- A process says that it lives, for so many seconds.
create function renew_process(p_process uuid, p_seconds float8) returns void
    language sql set search_path = pg_catalog, public, pg_temp as $$
    insert into lane_processes as p (process_id, until)
    values (p_process, now() + make_interval(secs => p_seconds))
    on conflict (process_id) do update set until = excluded.until
$$;

-- Calls whose process has not said for a while that it lives, of every organisation.
create function orphaned_calls(p_limit int)
    returns table (organisation_id uuid, team_id uuid, key_id uuid, task_id uuid)
    language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select c.organisation_id, t.team_id, t.key_id, c.task_id
      from calls c
      join tasks t on t.organisation_id = c.organisation_id and t.task_id = c.task_id
     where c.process_id is not null
       and not exists (select from lane_processes p
                        where p.process_id = c.process_id and p.until > now())
     order by c.created_at limit p_limit
$$;
revoke execute on function orphaned_calls(int) from public;
grant execute on function orphaned_calls(int) to overline_app;
grant create on schema public to overline_definer;
alter function orphaned_calls(int) owner to overline_definer;
revoke create on schema public from overline_definer;

-- The call is its workflow's now.
create function hand_over_call(p_organisation uuid, p_task uuid, p_run text) returns void
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    update calls c set process_id = null
     where c.organisation_id = p_organisation and c.task_id = p_task;
    update tasks t set run_id = p_run
     where t.organisation_id = p_organisation and t.task_id = p_task and t.run_id is null;
end $$;
