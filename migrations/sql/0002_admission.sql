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
