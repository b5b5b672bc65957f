-- Several tool calls in one step. `tool_call` of a step (and of a cache entry) is then a list, in
-- the order of the choice, and `tool_results` has what each was answered, by its place from 1:
-- {"2": {"call_id": …, "ok": …, "text": …}}. Both functions are new forms beside the old ones, which
-- processes call that run while this is applied.
alter table steps add column tool_results jsonb;

-- Keeps one tool attempt; the first successful result becomes the step's, or that of its place.
create function record_tool_call(
    p_organisation uuid, p_task uuid, p_step int, p_call_id text, p_name text, p_attempt int,
    p_arguments jsonb, p_result text, p_ok boolean, p_error jsonb, p_started timestamptz,
    p_ended timestamptz, p_place int
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
    if p_place is null then
        update steps s set tool_result = p_result
         where s.organisation_id = p_organisation and s.task_id = p_task and s.step = p_step
           and p_result is not null;
    else
        update steps s
           set tool_results = coalesce(s.tool_results, '{}') || jsonb_build_object(p_place::text,
                   jsonb_build_object('call_id', p_call_id, 'ok', p_ok, 'text', p_result))
         where s.organisation_id = p_organisation and s.task_id = p_task and s.step = p_step
           and p_result is not null;
    end if;
    return true;
end $$;

-- Files a task that goes on from a step of another one. The steps before it are copied and cost
-- nothing again: they have no hold and no row in the ledger. Of a step with several calls, the
-- result that is replaced is that of p_tool_place.
create function fork_task(
    p_organisation uuid, p_team uuid, p_key uuid, p_task uuid, p_idempotency_key text,
    p_digest text, p_input jsonb, p_user text, p_tags jsonb, p_route text,
    p_worst_case numeric, p_max_cost numeric, p_parent uuid, p_from_step int, p_changed text[],
    p_state jsonb, p_tool_result text, p_tool_place int,
    out task_id uuid, out created boolean, out conflict boolean,
    out code text, out scope text, out limit_usd numeric, out spent_usd numeric,
    out held_usd numeric
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    select f.task_id, f.created, f.conflict, f.code, f.scope, f.limit_usd, f.spent_usd, f.held_usd
      into task_id, created, conflict, code, scope, limit_usd, spent_usd, held_usd
      from submit_task(p_organisation, p_team, p_key, p_task, p_idempotency_key, p_digest,
                       p_input, p_user, p_tags, p_route, p_worst_case, p_max_cost) f;
    if code is not null or not created then
        return;
    end if;
    insert into task_forks
        (organisation_id, task_id, parent_task_id, from_step, changed, state)
    values (p_organisation, p_task, p_parent, p_from_step, p_changed, p_state);
    insert into steps (organisation_id, task_id, step, call_key, status, model, decision,
                       provenance, text, tool_call, tool_result, tool_results, finish_reason,
                       started_at, ended_at, inherited)
    select p_organisation, p_task, s.step, p_task || ':' || s.step, s.status, s.model, s.decision,
           s.provenance, s.text, s.tool_call,
           case when o.own and p_tool_place is null then p_tool_result else s.tool_result end,
           case when o.own and p_tool_place is not null
                then coalesce(s.tool_results, '{}') || jsonb_build_object(p_tool_place::text,
                         coalesce(s.tool_results -> p_tool_place::text, '{}')
                         || jsonb_build_object('ok', true, 'text', p_tool_result))
                else s.tool_results end,
           s.finish_reason, s.started_at, s.ended_at, true
      from steps s,
           lateral (select s.step = p_from_step - 1 and p_tool_result is not null as own) o
     where s.organisation_id = p_organisation and s.task_id = p_parent and s.step < p_from_step
       and s.status in ('succeeded', 'cached');
    update tasks t set steps = p_from_step - 1
     where t.organisation_id = p_organisation and t.task_id = p_task;
    perform push_event(p_organisation, p_task, null, 'task.forked',
        jsonb_build_object('parent', p_parent, 'from_step', p_from_step, 'changed', p_changed),
        'task.forked');
end $$;

-- What strangers wrote: calls that a model chooses after it read such a text can wait for a person.
alter table collections add column untrusted boolean not null default false;
