-- What ends at the edge: a hit of the cache and a refusal take few statements, write each row once,
-- and touch last what a whole organisation waits for.

-- Appends to the audit chain of the organisation whose transaction this is.
-- squawk-ignore ban-drop-function
drop function audit_append(text, text, text, jsonb);
create function audit_append(
    p_actor text, p_action text, p_subject text, p_detail jsonb
) returns bigint
    language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    tenant uuid := current_setting('overline.organisation_id')::uuid;
    head   record;
    moment timestamptz := clock_timestamp();
begin
    loop
        update audit_heads h
           set seq = h.seq + 1,
               digest = audit_digest(h.digest, h.seq + 1, moment, p_actor, p_action, p_subject,
                                     p_detail)
         where h.organisation_id = tenant
        returning old.digest as before, new.seq, new.digest into head;
        exit when found;
        insert into audit_heads (organisation_id, seq, digest)
        values (tenant, 0, sha256(convert_to(tenant::text, 'UTF8')))
        on conflict do nothing;
    end loop;
    insert into audit_log
        (organisation_id, seq, at, actor, action, subject, detail, previous, digest)
    values (tenant, head.seq, moment, p_actor, p_action, p_subject, p_detail, head.before,
            head.digest);
    return head.seq;
end $$;
revoke execute on function audit_append(text, text, text, jsonb) from public;
grant execute on function audit_append(text, text, text, jsonb) to overline_app;
grant create on schema public to overline_definer;
alter function audit_append(text, text, text, jsonb) owner to overline_definer;
revoke create on schema public from overline_definer;

-- The windows of an organisation's budget rules that a call falls into.
create function rule_windows(
    p_organisation uuid, p_team uuid, p_key uuid, p_user text, p_agent text, p_tags jsonb
) returns table (
    rule_id uuid, scope text, ordinal smallint, cap_usd numeric, hard boolean, window_key text
)
    language sql stable set search_path = pg_catalog, public, pg_temp as $$
    select r.rule_id, r.scope, r.ordinal, r.cap_usd, r.hard,
           m.subject || '|' || budget_window(r.period, r.time_zone, now())
      from budget_rules r
     cross join lateral (
        select p_organisation::text as subject where r.scope = 'organisation'
        union all select p_team::text where r.scope = 'team'
        union all select p_key::text where r.scope = 'key'
        union all select p_user where r.scope = 'user'
        union all select p_agent where r.scope = 'agent'
        union all select g.key || '=' || g.value from jsonb_each_text(p_tags) g
                   where r.scope = 'tag') m
     where r.organisation_id = p_organisation and m.subject is not null
       and (r.subject = m.subject or r.subject = '*'
            or (r.scope = 'tag' and r.subject = split_part(m.subject, '=', 1) || '=*'))
     order by r.ordinal, m.subject
$$;

-- The budgets of those windows; a window that nobody spent in yet is opened.
create or replace function rule_budgets(
    p_organisation uuid, p_team uuid, p_key uuid, p_task uuid
) returns uuid[]
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    t     record;
    w     record;
    ids   uuid[] := '{}';
    id    uuid;
begin
    if not exists (select from budget_rules r where r.organisation_id = p_organisation) then
        return ids;
    end if;
    select s.user_id, s.tags, s.agent_name into t from tasks s
     where s.organisation_id = p_organisation and s.task_id = p_task;
    for w in
        select * from rule_windows(p_organisation, p_team, p_key, t.user_id, t.agent_name, t.tags)
    loop
        select g.budget_id into id from budgets g
         where g.organisation_id = p_organisation and g.scope_id = w.rule_id
           and g.window_key = w.window_key;
        if id is null then
            insert into budgets (organisation_id, scope, scope_id, window_key, ordinal, cap_usd,
                                 soft_usd)
            values (p_organisation, w.scope, w.rule_id, w.window_key, w.ordinal,
                    case when w.hard then w.cap_usd end, case when not w.hard then w.cap_usd end)
            on conflict do nothing;
            select g.budget_id into id from budgets g
             where g.organisation_id = p_organisation and g.scope_id = w.rule_id
               and g.window_key = w.window_key;
        end if;
        ids := ids || id;
    end loop;
    return ids;
end $$;

-- Which budget above a key has no room for a call, looked at without a lock; scope is null when
-- all have. A window that nobody spent in yet has room as far as this says.
create function over_budget(
    p_organisation uuid, p_team uuid, p_key uuid, p_user text, p_tags jsonb, p_amount numeric,
    out scope text, out limit_usd numeric, out spent_usd numeric, out held_usd numeric
)
    language plpgsql stable set search_path = pg_catalog, public, pg_temp as $$
declare
    ids uuid[];
begin
    if exists (select from budget_rules r where r.organisation_id = p_organisation) then
        select array_agg(g.budget_id) into ids
          from rule_windows(p_organisation, p_team, p_key, p_user, null, p_tags) w
          join budgets g on g.organisation_id = p_organisation and g.scope_id = w.rule_id
                        and g.window_key = w.window_key;
    end if;
    select g.scope, g.cap_usd, g.spent_usd + g.overage_usd, g.held_usd
      into scope, limit_usd, spent_usd, held_usd
      from budgets g
     where g.organisation_id = p_organisation
       and ((g.scope_id = any (array[p_key, p_team, p_organisation]) and g.window_key = '')
            or g.budget_id = any (ids))
       and g.spent_usd + g.overage_usd + g.held_usd + p_amount > g.cap_usd
     order by g.depth
     limit 1;
end $$;

-- A call that the cache answers: filed, charged with nothing, and over. False, and nothing is
-- done, when the row is there already, or the idempotency key is another call's.
-- squawk-ignore ban-drop-function
drop function serve_cached_call(uuid, uuid, uuid, uuid, uuid, text, jsonb, text, text);
create function file_cached_call(
    p_organisation uuid, p_team uuid, p_key uuid, p_task uuid, p_idempotency_key text,
    p_digest text, p_input jsonb, p_user text, p_tags jsonb, p_endpoint text, p_model text,
    p_route text, p_stored boolean, p_hit uuid, p_trace text
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    call_key text := p_task || ':1';
    e        record;
begin
    select x.model, x.model_version, x.text, x.finish_reason, x.billed_usd, x.answer into e
      from cache_entries x
     where x.organisation_id = p_organisation and x.cache_entry_id = p_hit;
    insert into tasks (organisation_id, task_id, team_id, key_id, workflow_id, idempotency_key,
                       request_digest, route, input, user_id, tags, worst_case_usd, kind, status,
                       answer, steps, saved_usd, next_event, started_at, finished_at)
    values (p_organisation, p_task, p_team, p_key, 'task-' || p_task, p_idempotency_key, p_digest,
            p_route, p_input, p_user, p_tags, 0, 'call', 'succeeded', e.text, 1, e.billed_usd, 6,
            now(), clock_timestamp())
    on conflict do nothing;
    if not found then
        return false;
    end if;
    insert into calls (organisation_id, task_id, endpoint, stored, answer, usage, model, ended_at)
    values (p_organisation, p_task, p_endpoint, p_stored, e.answer, e.answer -> 'usage', e.model,
            clock_timestamp());
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
        (1, null, 'task.accepted', '{}'::jsonb, 'task.accepted'),
        (2, 1, 'step.started', '{}', 'step.1.started'),
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
    -- Everybody who is answered by the same entry waits for this row, and then for the chain.
    update cache_entries x set hits = x.hits + 1
     where x.organisation_id = p_organisation and x.cache_entry_id = p_hit;
    perform audit_append('ol_' || replace(p_key::text, '-', ''), 'call.cached', p_task::text,
                         jsonb_build_object('model', e.model, 'saved_usd', e.billed_usd::text));
    return true;
end $$;

-- The first round trip of a call: whose key it is, whether it was asked before, whether it may be,
-- whether it has been answered already, and, if it is to be made, its task, its hold and its first
-- attempt. Nothing is used up by a refusal; what refused, and with which numbers, is on file.
--
-- Verdicts: unauthenticated, forbidden, refused, earlier (see earlier_call), cached, go.
create or replace function open_call(
    p_key uuid, p_digest bytea, p_task uuid, p_idempotency_key text, p_request_digest text,
    p_input jsonb, p_user text, p_tags jsonb, p_endpoint text, p_requested text, p_route text,
    p_stored boolean, p_amount numeric, p_cache_key text, p_process uuid, p_model text,
    p_model_version text, p_tokenizer_version text, p_deployment text, p_replica text,
    p_prompt_ids bytea, p_likely_prompt int, p_trace text, p_output int default null,
    out verdict text, out organisation_id uuid, out team_id uuid, out code text, out scope text,
    out limit_usd numeric, out spent_usd numeric, out held_usd numeric, out task_id uuid,
    out conflict boolean, out status text, out error jsonb, out answer jsonb, out usage jsonb,
    out model text, out created_at timestamptz, out billed_usd numeric, out saved_usd numeric,
    out rate jsonb
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
#variable_conflict use_column
declare
    k     record;
    hit   record;
    held  record;
    l     record;
    -- By what it was asked for, and who will answer it.
    named  text[] := array[p_requested, p_model];
    likely int := coalesce(p_likely_prompt, octet_length(p_prompt_ids) / 4);
begin
    select * into k from authenticate(p_key, p_digest);
    if not found or k.verdict <> 'ok' then
        verdict := 'unauthenticated';
        code := coalesce(k.verdict, 'unknown');
        return;
    end if;
    organisation_id := k.organisation_id;
    team_id := k.team_id;
    if not 'tasks' = any (k.scopes) then
        verdict := 'forbidden';
        return;
    end if;
    perform set_config('overline.organisation_id', k.organisation_id::text, true);

    if p_idempotency_key is not null then
        select 'earlier', e.task_id, e.conflict, e.status, e.error, e.answer, e.usage, e.model,
               e.created_at, e.billed_usd, limits_now(k.organisation_id, k.team_id, p_key, named)
          into verdict, task_id, conflict, status, error, answer, usage, model, created_at,
               billed_usd, rate
          from earlier_call(k.organisation_id, p_key, p_task, p_idempotency_key,
                            p_request_digest) e
         where e.task_id is not null;
        if found then
            return;
        end if;
    end if;

    -- Where the row is written this is looked at again: no door leads past it. Here it is a refusal
    -- that is on file.
    scope := key_restriction(k.organisation_id, p_key, 'call', p_route, p_input);
    if scope is not null then
        code := 'key_restricted';
    end if;

    task_id := p_task;
    created_at := now();
    if code is null and p_cache_key is not null then
        select e.cache_entry_id, e.model, e.answer, e.billed_usd into hit from cache_entries e
         where e.organisation_id = k.organisation_id and e.key = p_cache_key
           and e.answer is not null and e.revisions = '{}'
           and (e.expires_at is null or e.expires_at > now())
           and e.catalogue_digest = (select s.digest from catalogue_state s);
        if found and file_cached_call(k.organisation_id, k.team_id, p_key, p_task,
                                      p_idempotency_key, p_request_digest, p_input, p_user, p_tags,
                                      p_endpoint, p_requested, p_route, p_stored,
                                      hit.cache_entry_id, p_trace)
        then
            verdict := 'cached';
            answer := hit.answer;
            usage := hit.answer -> 'usage';
            model := hit.model;
            billed_usd := 0;
            saved_usd := hit.billed_usd;
            rate := limits_now(k.organisation_id, k.team_id, p_key, named);
            return;
        end if;
    end if;

    -- Looked at once without a lock, so that a refusal costs nobody anything. What counts is asked
    -- again by `admit`, which locks.
    if code is null then
        select * into l from check_limits(k.organisation_id, k.team_id, p_key, named, likely,
                                          p_output, false);
        if l.refused is not null then
            code := 'rate_limited';
            scope := l.scope;
            rate := l.refused;
        end if;
    end if;
    if code is null then
        select * into held from over_budget(k.organisation_id, k.team_id, p_key, p_user, p_tags,
                                            p_amount);
        if held.scope is not null then
            code := 'budget_exceeded';
            scope := held.scope;
            limit_usd := held.limit_usd;
            spent_usd := held.spent_usd;
            held_usd := held.held_usd;
        end if;
    end if;

    if code is null then
        begin
            if not file_call(k.organisation_id, k.team_id, p_key, p_task, p_idempotency_key,
                             p_request_digest, p_input, p_user, p_tags, p_endpoint, p_requested,
                             p_route, p_stored, p_amount, p_process)
            then
                -- Asked a second time at the same moment, or this very statement ran before.
                raise exception 'known' using errcode = 'OV006';
            end if;
            perform begin_candidate(k.organisation_id, p_task, 0, p_model, p_model_version,
                                    p_tokenizer_version, p_deployment, p_replica, p_prompt_ids,
                                    p_likely_prompt, p_trace);
            -- The budgets last, because everybody of the organisation waits for them.
            select * into held from admit(k.organisation_id, k.team_id, p_key, p_task, 1,
                                          p_task || ':1', p_amount, named, likely, p_output);
            if held.code is not null then
                raise exception 'refused' using errcode = 'OV007';
            end if;
            verdict := 'go';
            rate := held.rate;
            if l.limit_ids <> '{}' then
                rate := coalesce(limits_now(k.organisation_id, k.team_id, p_key, named), '{}')
                        || coalesce(held.rate, '{}');
            end if;
            return;
        exception
            when sqlstate 'OV006' then
                select 'earlier', e.task_id, e.conflict, e.status, e.error, e.answer, e.usage,
                       e.model, e.created_at, e.billed_usd,
                       limits_now(k.organisation_id, k.team_id, p_key, named)
                  into verdict, task_id, conflict, status, error, answer, usage, model,
                       created_at, billed_usd, rate
                  from earlier_call(k.organisation_id, p_key, p_task, p_idempotency_key,
                                    p_request_digest) e;
                return;
            when sqlstate 'OV007' then
                code := held.code;
                scope := held.scope;
                limit_usd := held.limit_usd;
                spent_usd := held.spent_usd;
                held_usd := held.held_usd;
                rate := held.rate;
        end;
    end if;

    verdict := 'refused';
    if code = 'rate_limited' then
        rate := coalesce(limits_now(k.organisation_id, k.team_id, p_key, named), '{}') || rate;
    end if;
    insert into refused_calls (organisation_id, refusal_id, team_id, key_id, user_id, tags,
                               endpoint, model, code, scope, needed_usd, limit_usd, spent_usd,
                               held_usd, trace_id)
    values (k.organisation_id, p_task, k.team_id, p_key, p_user, p_tags, p_endpoint, p_requested,
            code, scope, p_amount, limit_usd, spent_usd, held_usd, p_trace);
    perform audit_append('ol_' || replace(p_key::text, '-', ''), 'call.refused', p_task::text,
        jsonb_strip_nulls(jsonb_build_object('code', code, 'scope', scope, 'model', p_requested,
            'needed_usd', p_amount::text, 'limit_usd', limit_usd::text,
            'measure', rate -> 'measure', 'limit', rate -> 'limit')));
end $$;
