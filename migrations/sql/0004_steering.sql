-- Steering: pause and resume, and tasks that rerun others from one of their steps.

alter table tasks add column paused_at timestamptz;
alter table steps add column inherited boolean not null default false;

-- The newest wish of each task that was ever paused. It is written with the row and sent to the
-- workflow afterwards; what was not sent, because a process died in between, is sent by another.
-- The number tells a wish from an older one that arrives late.
create table task_steering (
    organisation_id uuid not null,
    task_id         uuid not null,
    number          int not null check (number >= 1),
    sent_number     int not null default 0,
    paused          boolean not null,
    wished_at       timestamptz not null default now(),
    primary key (organisation_id, task_id),
    foreign key (organisation_id, task_id) references tasks
);
create index task_steering_unsent on task_steering (wished_at) where number > sent_number;

-- From which step of which task another one goes on, with what changed; `state` is where its loop
-- starts: digests and counters, no texts.
create table task_forks (
    organisation_id uuid not null,
    task_id         uuid not null,
    parent_task_id  uuid not null,
    from_step       int not null check (from_step >= 1),
    changed         text[] not null,
    state           jsonb,
    created_at      timestamptz not null default now(),
    primary key (organisation_id, task_id),
    foreign key (organisation_id, task_id) references tasks,
    foreign key (organisation_id, parent_task_id) references tasks
);
create index task_forks_by_parent on task_forks (organisation_id, parent_task_id);

do $$
declare name text;
begin
    foreach name in array array['task_steering', 'task_forks']
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
grant select, insert on task_forks to overline_app;
grant select, insert, update on task_steering to overline_app;
grant select on task_steering, task_forks to overline_reader;
grant select on task_steering to overline_definer;

-- Notes the wish that a task pauses or goes on, once, with its event.
create function steer_task(
    p_organisation uuid, p_task uuid, p_paused boolean,
    out ended boolean, out changed boolean, out number int
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    t record;
begin
    select s.paused_at, s.finished_at into t from tasks s
     where s.organisation_id = p_organisation and s.task_id = p_task for no key update;
    if not found then
        raise exception 'no such task' using errcode = 'OV003';
    end if;
    ended := t.finished_at is not null;
    changed := not ended and (t.paused_at is not null) <> p_paused;
    if changed then
        update tasks s set paused_at = case when p_paused then now() end
         where s.organisation_id = p_organisation and s.task_id = p_task;
        insert into task_steering as w (organisation_id, task_id, number, paused)
        values (p_organisation, p_task, 1, p_paused)
        on conflict (organisation_id, task_id) do update
           set number = w.number + 1, paused = p_paused, wished_at = now()
        returning w.number into number;
        perform push_event(p_organisation, p_task, null,
            case when p_paused then 'task.paused' else 'task.resumed' end, '{}',
            'steering.' || number);
    else
        select w.number into number from task_steering w
         where w.organisation_id = p_organisation and w.task_id = p_task;
    end if;
end $$;

-- Wishes that nobody has confirmed as sent, of every organisation.
create function unsent_wishes(p_older_than interval, p_limit int)
    returns table (organisation_id uuid, task_id uuid, paused boolean, number int)
    language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select w.organisation_id, w.task_id, w.paused, w.number
      from task_steering w
      join tasks t on t.organisation_id = w.organisation_id and t.task_id = w.task_id
     where w.number > w.sent_number and w.wished_at < now() - p_older_than
       and t.finished_at is null
     order by w.wished_at limit p_limit
$$;
revoke execute on function unsent_wishes(interval, int) from public;
grant execute on function unsent_wishes(interval, int) to overline_app;
grant create on schema public to overline_definer;
alter function unsent_wishes(interval, int) owner to overline_definer;
revoke create on schema public from overline_definer;

-- Files a task that goes on from a step of another one. The steps before it are copied and cost
-- nothing again: they have no hold and no row in the ledger.
create function fork_task(
    p_organisation uuid, p_team uuid, p_key uuid, p_task uuid, p_idempotency_key text,
    p_digest text, p_input jsonb, p_user text, p_tags jsonb, p_route text,
    p_worst_case numeric, p_max_cost numeric, p_parent uuid, p_from_step int, p_changed text[],
    p_state jsonb, p_tool_result text,
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
                       provenance, text, tool_call, tool_result, finish_reason, started_at,
                       ended_at, inherited)
    select p_organisation, p_task, s.step, p_task || ':' || s.step, s.status, s.model, s.decision,
           s.provenance, s.text, s.tool_call,
           case when s.step = p_from_step - 1 and p_tool_result is not null then p_tool_result
                else s.tool_result end,
           s.finish_reason, s.started_at, s.ended_at, true
      from steps s
     where s.organisation_id = p_organisation and s.task_id = p_parent and s.step < p_from_step
       and s.status in ('succeeded', 'cached');
    update tasks t set steps = p_from_step - 1
     where t.organisation_id = p_organisation and t.task_id = p_task;
    perform push_event(p_organisation, p_task, null, 'task.forked',
        jsonb_build_object('parent', p_parent, 'from_step', p_from_step, 'changed', p_changed),
        'task.forked');
end $$;
