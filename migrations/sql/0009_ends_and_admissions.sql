-- A call that is admitted while its task is being ended: neither may the hold stay for ever, nor the
-- ended task run again.
create or replace function admit(
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

    -- The task may have been ended since it was looked at. Looked at again under its lock, it can
    -- not be ended before this hold is there to be found.
    select s.status into t from tasks s
     where s.organisation_id = p_organisation and s.task_id = p_task for no key update;
    if t.status not in ('accepted', 'running') then
        code := 'task_' || t.status;
        scope := 'task';
        return;
    end if;

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

-- The end of a task, once. Calls still open are settled first, with nothing billed.
create or replace function finish_task(
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
    if exists (select from holds x where x.organisation_id = p_organisation
                and x.task_id = p_task and x.state = 'held') then
        -- Admitted since the open calls were closed. Its budgets come before the task in the order
        -- of locks, so all of this is done again from the beginning.
        raise exception 'a call was admitted meanwhile' using errcode = '40001';
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
