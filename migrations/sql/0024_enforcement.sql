-- Admission with budgets by rule and limits of rate: every level is checked before any is used.

-- May this call happen, and is its worst case covered at every level above it: the task, the tasks
-- it is a child of, key, team, organisation? `patient`: the task is a child, so what its relatives
-- hold is worth waiting for.
-- squawk-ignore ban-drop-function
drop function admit(uuid, uuid, uuid, uuid, int, text, numeric);
create function admit(
    p_organisation uuid, p_team uuid, p_key uuid, p_task uuid, p_step int, p_call_key text,
    p_amount numeric, p_models text[] default null, p_input int default 0,
    p_output int default null,
    out hold_id uuid, out code text, out scope text, out limit_usd numeric, out spent_usd numeric,
    out held_usd numeric, out patient boolean, out rate jsonb
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    k    record;
    b    record;
    t    record;
    l    record;
    w    record;
    held uuid[] := '{}';
    rules uuid[];
    soft uuid[] := '{}';
    warnings jsonb := '[]';
begin
    patient := false;
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
    select s.status, s.ancestors into t from tasks s
     where s.organisation_id = p_organisation and s.task_id = p_task;
    if not found then
        raise exception 'no such task' using errcode = 'OV003';
    end if;
    if t.status not in ('accepted', 'running') then
        code := 'task_' || t.status;
        scope := 'task';
        return;
    end if;
    patient := cardinality(t.ancestors) > 0;

    rules := rule_budgets(p_organisation, p_team, p_key, p_task);
    -- Every level is locked and checked before any is changed: a refusal leaves no trace.
    for b in
        select g.budget_id, g.cap_usd, g.soft_usd, g.window_key, g.warned_at, g.held_usd, g.spent_usd + g.overage_usd as spent,
               g.cap_tokens, g.spent_tokens,
               case when g.scope = 'task' and g.scope_id <> p_task then 'parent'
                    else g.scope end as scope
          from budgets g
         where g.organisation_id = p_organisation
           and ((g.scope_id = any (array[p_task, p_key, p_team, p_organisation] || t.ancestors)
                 and g.window_key = '') or g.budget_id = any (rules))
         order by g.depth
           for no key update
    loop
        if b.spent_tokens >= b.cap_tokens then
            code := 'tokens_exceeded';
            scope := b.scope;
            return;
        end if;
        if b.spent + b.held_usd + p_amount > b.cap_usd then
            code := 'budget_exceeded';
            scope := b.scope;
            limit_usd := b.cap_usd;
            spent_usd := b.spent;
            held_usd := b.held_usd;
            return;
        end if;
        held := held || b.budget_id;
        if b.spent + b.held_usd + p_amount > b.soft_usd then
            warnings := warnings || jsonb_build_object('scope', b.scope,
                'subject', split_part(b.window_key, '|', 1),
                'period', split_part(b.window_key, '|', 2), 'limit_usd', b.soft_usd::text,
                'spent_usd', b.spent::text);
            if b.warned_at is null then
                soft := soft || b.budget_id;
            end if;
        end if;
    end loop;

    -- The task may have been ended since it was looked at. Looked at again under its lock, it can
    -- not be ended before this hold is there to be found.
    select s.status into t from tasks s
     where s.organisation_id = p_organisation and s.task_id = p_task for no key update;
    if t.status not in ('accepted', 'running') then
        code := 'task_' || t.status;
        scope := 'task';
        return;
    end if;

    -- The limits after the budgets, as where they are freed.
    select * into l from check_limits(p_organisation, p_team, p_key,
        coalesce(p_models, '{}'), p_input, p_output, true);
    if l.refused is not null then
        code := 'rate_limited';
        scope := l.scope;
        rate := l.refused;
        return;
    end if;

    insert into holds
        (organisation_id, call_key, task_id, team_id, key_id, step, amount_usd, budget_ids,
         limit_ids, limit_input, limit_output)
    values (p_organisation, p_call_key, p_task, p_team, p_key, p_step, p_amount, held,
            l.limit_ids, p_input, l.reserved_output)
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
    if l.limit_ids <> '{}' then
        perform use_limits(p_organisation, l.limit_ids, p_input, l.reserved_output);
    end if;

    if warnings <> '[]' then
        rate := jsonb_build_object('budgets', warnings);
    end if;

    update tasks s
       set status = 'running', started_at = coalesce(s.started_at, now()),
           steps = greatest(s.steps, p_step)
     where s.organisation_id = p_organisation and s.task_id = p_task;
    insert into steps (organisation_id, task_id, step, call_key)
    values (p_organisation, p_task, p_step, p_call_key)
    on conflict do nothing;
    perform push_event(p_organisation, p_task, p_step, 'step.started', '{}',
                       'step.' || p_step || '.started');
    -- Once a period, and last: everybody of the organisation waits for the audit chain.
    for w in
        update budgets g set warned_at = now()
         where g.organisation_id = p_organisation and g.budget_id = any (soft)
           and g.warned_at is null
        returning g.scope_id, g.scope, g.window_key, g.soft_usd, g.spent_usd, g.held_usd
    loop
        perform audit_append('overline', 'budget.warning', w.scope_id::text, jsonb_build_object(
            'scope', w.scope, 'subject', split_part(w.window_key, '|', 1),
            'period', split_part(w.window_key, '|', 2), 'limit_usd', w.soft_usd::text,
            'spent_usd', w.spent_usd::text, 'held_usd', w.held_usd::text));
    end loop;
end $$;

-- The first round trip of a call: whose key it is, whether it was asked before, whether it may be,
-- whether it has been answered already, and, if it is to be made, its task, its hold and its first
-- attempt. Nothing is used up by a refusal; what refused, and with which numbers, is on file.
--
-- Verdicts: unauthenticated, forbidden, refused, earlier (see earlier_call), cached, go.
create function open_call(
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
    known record;
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
        select * into known from earlier_call(k.organisation_id, p_key, p_task, p_idempotency_key,
                                              p_request_digest);
        if known.task_id is not null then
            verdict := 'earlier';
            task_id := known.task_id;
            conflict := known.conflict;
            status := known.status;
            error := known.error;
            answer := known.answer;
            usage := known.usage;
            model := known.model;
            created_at := known.created_at;
            billed_usd := known.billed_usd;
            rate := limits_now(k.organisation_id, k.team_id, p_key, named);
            return;
        end if;
    end if;

    -- Restrictions of the key are looked at here, before anything is written: they set code and
    -- scope, and the refusal below does the rest.

    task_id := p_task;
    created_at := now();
    if code is null and p_cache_key is not null then
        select e.cache_entry_id, e.model, e.answer, e.billed_usd into hit from cache_entries e
         where e.organisation_id = k.organisation_id and e.key = p_cache_key
           and e.answer is not null and e.revisions = '{}'
           and (e.expires_at is null or e.expires_at > now())
           and e.catalogue_digest = (select s.digest from catalogue_state s);
        if found and file_call(k.organisation_id, k.team_id, p_key, p_task, p_idempotency_key,
                               p_request_digest, p_input, p_user, p_tags, p_endpoint, p_requested,
                               p_route, p_stored, 0, null)
        then
            perform serve_cached_call(k.organisation_id, k.team_id, p_key, p_task,
                                      hit.cache_entry_id, p_user, p_tags, p_route, p_trace);
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

    if code is null then
        -- Looked at once without a lock, so that a refusal costs nobody anything. What counts is
        -- asked again by `admit`, which locks.
        select * into l from check_limits(k.organisation_id, k.team_id, p_key, named, likely,
                                          p_output, false);
        if l.refused is not null then
            code := 'rate_limited';
            scope := l.scope;
            rate := l.refused;
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
                select * into known from earlier_call(k.organisation_id, p_key, p_task,
                                                      p_idempotency_key, p_request_digest);
                verdict := 'earlier';
                task_id := known.task_id;
                conflict := known.conflict;
                status := known.status;
                error := known.error;
                answer := known.answer;
                usage := known.usage;
                model := known.model;
                created_at := known.created_at;
                billed_usd := known.billed_usd;
                rate := limits_now(k.organisation_id, k.team_id, p_key, named);
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
