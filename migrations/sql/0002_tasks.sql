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
