-- Tasks of tasks: sub-agents and maps. A child is a task like any other; its parent's budgets are
-- its own, too.

alter table tasks add column kind text not null default 'agent' check (kind in ('agent', 'map'));
alter table tasks add column parent_task_id uuid;
alter table tasks add column parent_step int;
alter table tasks add column root_task_id uuid;
-- Parent first, root last.
alter table tasks add column ancestors uuid[] not null default '{}'
    check (cardinality(ancestors) <= 8);
-- The owner is fenced too, but not while it fills what is new.
alter table tasks no force row level security;
update tasks set root_task_id = task_id;
alter table tasks force row level security;
-- What was there before cannot break them.
alter table tasks add constraint tasks_root check (root_task_id is not null) not valid;
alter table tasks add constraint tasks_parent
    foreign key (organisation_id, parent_task_id) references tasks not valid;
-- Of rows that have a parent, and so far none has; for the third one writers wait once.
-- squawk-ignore require-concurrent-index-creation
create index tasks_by_parent on tasks (organisation_id, parent_task_id, task_id)
    where parent_task_id is not null;
-- squawk-ignore require-concurrent-index-creation
create index tasks_by_root on tasks (organisation_id, root_task_id)
    where parent_task_id is not null;
-- squawk-ignore require-concurrent-index-creation
create index tasks_of_callers on tasks (organisation_id, task_id) where parent_task_id is null;

-- Where a task stands is derived from its parent, whichever way it is filed.
create function note_descent() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    new.root_task_id := new.task_id;
    if new.parent_task_id is not null then
        select p.root_task_id, array[p.task_id] || p.ancestors
          into new.root_task_id, new.ancestors
          from tasks p
         where p.organisation_id = new.organisation_id and p.task_id = new.parent_task_id;
    end if;
    return new;
end $$;
create trigger descent before insert on tasks for each row execute function note_descent();

-- A child's budget is locked before its parent's: leaf to root, at any nesting, so that chains still
-- cannot deadlock.
alter table budgets add column nesting smallint not null default 0 check (nesting between 0 and 8);
alter table budgets alter column depth set expression as
    (case scope when 'task' then -nesting when 'key' then 1 when 'team' then 2 else 3 end);

-- limits.max_tokens of a task and everything below it. Counted where the money is, under the same
-- lock; a call in flight may go over it, and the next one is refused.
alter table budgets add column cap_tokens bigint check (cap_tokens >= 1);
alter table budgets add column spent_tokens bigint not null default 0;

create function count_tokens() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    update budgets g
       set spent_tokens = g.spent_tokens + new.prompt_tokens + new.completion_tokens
     where g.organisation_id = new.organisation_id and g.budget_id = any (new.budget_ids)
       and g.cap_tokens is not null;
    return null;
end $$;
create trigger tokens after update of state on holds for each row
    when (new.state = 'settled' and old.state = 'held') execute function count_tokens();

-- What a map is over; the items' tasks are its children.
create table map_items (
    organisation_id uuid not null,
    task_id         uuid not null,
    number          int not null check (number >= 1),
    input           jsonb not null,
    item_task_id    uuid,
    status          text not null default 'waiting' check (status in
                      ('waiting', 'running', 'succeeded', 'failed', 'cancelled', 'skipped')),
    primary key (organisation_id, task_id, number),
    foreign key (organisation_id, task_id) references tasks
) with (fillfactor = 70);
create index map_items_by_task on map_items (organisation_id, item_task_id)
    where item_task_id is not null;
alter table map_items enable row level security;
alter table map_items force row level security;
create policy tenant on map_items
    using      (organisation_id = current_setting('overline.organisation_id')::uuid)
    with check (organisation_id = current_setting('overline.organisation_id')::uuid);
grant select, insert, update on map_items to overline_app;
grant select on map_items to overline_reader;

-- An agent as a tool: pinned for the tasks that were told of it. It is nobody's registration, so it
-- is never among the tools that can be named by themselves (`removed_at` is set).
-- squawk-ignore ban-drop-constraint
alter table tools drop constraint tools_kind_check;
alter table tools add constraint tools_kind_check
    check (kind in ('openapi', 'mcp', 'agent')) not valid;

-- Tasks of callers only: a child is started by its parent's workflow.
-- squawk-ignore ban-drop-function
drop function unstarted_tasks(interval, int);
create function unstarted_tasks(p_older_than interval, p_limit int)
    returns table (organisation_id uuid, team_id uuid, key_id uuid, task_id uuid, kind text,
                   route text, input jsonb, user_id text, tags jsonb, created_at timestamptz)
    language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select t.organisation_id, t.team_id, t.key_id, t.task_id, t.kind, t.route, t.input, t.user_id,
           t.tags, t.created_at
      from tasks t
     where t.status = 'accepted' and t.run_id is null and t.created_at < now() - p_older_than
       and t.parent_task_id is null
     order by t.created_at limit p_limit
$$;
revoke execute on function unstarted_tasks(interval, int) from public;
grant execute on function unstarted_tasks(interval, int) to overline_app;
grant create on schema public to overline_definer;
alter function unstarted_tasks(interval, int) owner to overline_definer;
revoke create on schema public from overline_definer;

-- Files a task, or finds the first one of the same idempotency key. A child is looked at under its
-- parent's lock, so that it is not filed behind the parent's end; what siblings hold comes back, so
-- only what is spent can refuse it.
-- squawk-ignore ban-drop-function
drop function submit_task(uuid, uuid, uuid, uuid, text, text, jsonb, text, jsonb, text, numeric,
                          numeric);
create function submit_task(
    p_organisation uuid, p_team uuid, p_key uuid, p_task uuid, p_idempotency_key text,
    p_digest text, p_input jsonb, p_user text, p_tags jsonb, p_route text,
    p_worst_case numeric, p_max_cost numeric, p_parent uuid default null,
    p_parent_step int default null, p_kind text default 'agent',
    out task_id uuid, out created boolean, out conflict boolean,
    out code text, out scope text, out limit_usd numeric, out spent_usd numeric,
    out held_usd numeric
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    first  record;
    b      record;
    parent record;
    above  uuid[] := '{}';
    tokens bigint := (p_input #>> '{limits,max_tokens}')::bigint;
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
    if p_parent is not null then
        select t.status, t.ancestors into parent from tasks t
         where t.organisation_id = p_organisation and t.task_id = p_parent for no key update;
        if not found then
            raise exception 'no such task' using errcode = 'OV003';
        end if;
        above := array[p_parent] || parent.ancestors;
        code := case when parent.status not in ('accepted', 'running')
                     then 'task_' || parent.status
                     when cardinality(above) > 8 then 'too_deep' end;
        if code is not null then
            scope := 'parent';
            return;
        end if;
    end if;

    for b in
        select 'task' as scope, p_max_cost as cap_usd, 0::numeric as spent, 0::numeric as held,
               -cardinality(above) as depth
         where p_max_cost is not null
        union all
        select case g.scope when 'task' then 'parent' else g.scope end, g.cap_usd,
               g.spent_usd + g.overage_usd, g.held_usd, g.depth
          from budgets g
         where g.organisation_id = p_organisation and g.cap_usd is not null
           and g.scope_id = any (above || array[p_key, p_team, p_organisation])
         order by depth
    loop
        if b.spent + p_worst_case
           + (case when p_parent is null then b.held else 0 end) > b.cap_usd
        then
            code := 'budget_exceeded';
            scope := b.scope;
            limit_usd := b.cap_usd;
            spent_usd := b.spent;
            held_usd := b.held;
            return;
        end if;
    end loop;

    insert into tasks (organisation_id, task_id, team_id, key_id, workflow_id, idempotency_key,
                       request_digest, route, input, user_id, tags, worst_case_usd, max_cost_usd,
                       kind, parent_task_id, parent_step)
    values (p_organisation, p_task, p_team, p_key, 'task-' || p_task, p_idempotency_key,
            p_digest, p_route, p_input, p_user, p_tags, p_worst_case, p_max_cost, p_kind, p_parent,
            p_parent_step)
    on conflict do nothing;
    if not found then
        -- Somebody filed the same request at the same moment, or this very statement ran before.
        select t.task_id, t.request_digest <> p_digest into task_id, conflict from tasks t
         where t.organisation_id = p_organisation
           and (t.task_id = p_task
                or (t.key_id = p_key and t.idempotency_key = p_idempotency_key));
        return;
    end if;
    if p_max_cost is not null or tokens is not null then
        insert into budgets (organisation_id, scope, scope_id, cap_usd, cap_tokens, nesting)
        values (p_organisation, 'task', p_task, p_max_cost, tokens, cardinality(above));
    end if;
    perform push_event(p_organisation, p_task, null, 'task.accepted', '{}', 'task.accepted');
    task_id := p_task;
    created := true;
end $$;

-- Files what a tool call of a task asks a sub-agent, once a call.
create function file_child(
    p_organisation uuid, p_team uuid, p_key uuid, p_task uuid, p_idempotency_key text,
    p_digest text, p_input jsonb, p_user text, p_tags jsonb, p_route text,
    p_worst_case numeric, p_max_cost numeric, p_parent uuid, p_parent_step int, p_call_id text,
    out task_id uuid, out created boolean, out conflict boolean,
    out code text, out scope text, out limit_usd numeric, out spent_usd numeric,
    out held_usd numeric
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    select f.task_id, f.created, f.conflict, f.code, f.scope, f.limit_usd, f.spent_usd, f.held_usd
      into task_id, created, conflict, code, scope, limit_usd, spent_usd, held_usd
      from submit_task(p_organisation, p_team, p_key, p_task, p_idempotency_key, p_digest,
                       p_input, p_user, p_tags, p_route, p_worst_case, p_max_cost, p_parent,
                       p_parent_step) f;
    if created then
        perform push_event(p_organisation, p_parent, p_parent_step, 'child.started',
            jsonb_build_object('call_id', p_call_id, 'task', p_task, 'agent', p_input -> 'agent'),
            'child.' || p_call_id);
    end if;
end $$;

-- Files a map with what it is over.
create function submit_map(
    p_organisation uuid, p_team uuid, p_key uuid, p_task uuid, p_idempotency_key text,
    p_digest text, p_input jsonb, p_user text, p_tags jsonb, p_route text,
    p_worst_case numeric, p_max_cost numeric, p_items jsonb,
    out task_id uuid, out created boolean, out conflict boolean,
    out code text, out scope text, out limit_usd numeric, out spent_usd numeric,
    out held_usd numeric
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    select f.task_id, f.created, f.conflict, f.code, f.scope, f.limit_usd, f.spent_usd, f.held_usd
      into task_id, created, conflict, code, scope, limit_usd, spent_usd, held_usd
      from submit_task(p_organisation, p_team, p_key, p_task, p_idempotency_key, p_digest,
                       p_input, p_user, p_tags, p_route, p_worst_case, p_max_cost,
                       p_kind => 'map') f;
    if created then
        insert into map_items (organisation_id, task_id, number, input)
        select p_organisation, p_task, i.ordinality, i.value
          from jsonb_array_elements(p_items) with ordinality i;
    end if;
end $$;

-- How far a map is.
create function map_progress(p_organisation uuid, p_map uuid) returns jsonb
    language sql stable set search_path = pg_catalog, public, pg_temp as $$
    select jsonb_build_object(
               'total', count(*),
               'waiting', count(*) filter (where m.status = 'waiting'),
               'running', count(*) filter (where m.status = 'running'),
               'done', count(*) filter (where m.status = 'succeeded'),
               'failed', count(*) filter (where m.status in ('failed', 'cancelled')),
               'skipped', count(*) filter (where m.status = 'skipped'))
      from map_items m where m.organisation_id = p_organisation and m.task_id = p_map
$$;

-- Files the tasks of a map's next items, each once, and tells readers how far it is. What refuses
-- the first of them is the only row, without a number.
create function file_map_items(
    p_organisation uuid, p_map uuid, p_after int, p_limit int, p_worst_case numeric,
    p_max_cost numeric
) returns table (number int, item_task_id uuid, input jsonb, code text, scope text,
                 limit_usd numeric, spent_usd numeric, held_usd numeric)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
#variable_conflict use_column
declare
    m    record;
    k    record;
    i    record;
    f    record;
    filed boolean := false;
begin
    select t.team_id, t.key_id, t.status, t.input, t.user_id, t.tags, t.route into m from tasks t
     where t.organisation_id = p_organisation and t.task_id = p_map for no key update;
    if not found then
        raise exception 'no such task' using errcode = 'OV003';
    end if;
    select a.enabled, a.expires_at into k from api_keys a
     where a.organisation_id = p_organisation and a.key_id = m.key_id;
    code := case when m.status not in ('accepted', 'running') then 'task_' || m.status
                 when not k.enabled then 'key_disabled'
                 when k.expires_at <= now() then 'key_expired' end;
    if code is not null then
        scope := split_part(code, '_', 1);
        return next;
        return;
    end if;
    update tasks t set status = 'running', started_at = coalesce(t.started_at, now())
     where t.organisation_id = p_organisation and t.task_id = p_map;
    for i in
        select x.number, x.input, x.item_task_id from map_items x
         where x.organisation_id = p_organisation and x.task_id = p_map and x.number > p_after
         order by x.number limit p_limit
    loop
        if i.item_task_id is null then
            i.item_task_id := uuidv7();
            select s.* into f
              from submit_task(p_organisation, m.team_id, m.key_id, i.item_task_id, null,
                               'item ' || i.number, (m.input -> 'task') || i.input, m.user_id,
                               m.tags, m.route, p_worst_case, p_max_cost, p_map) s;
            if f.code is not null then
                if not filed then
                    code := f.code;
                    scope := f.scope;
                    limit_usd := f.limit_usd;
                    spent_usd := f.spent_usd;
                    held_usd := f.held_usd;
                    return next;
                end if;
                exit;
            end if;
            update map_items x set item_task_id = i.item_task_id, status = 'running'
             where x.organisation_id = p_organisation and x.task_id = p_map
               and x.number = i.number;
        end if;
        filed := true;
        number := i.number;
        item_task_id := i.item_task_id;
        input := i.input;
        return next;
    end loop;
    perform push_event(p_organisation, p_map, null, 'map.progress',
                       map_progress(p_organisation, p_map), 'map.progress.' || p_after);
end $$;

-- The end of a task, once. Calls still open are settled first, with nothing billed; children that
-- have not begun never will. Tasks are locked parent before child.
create or replace function finish_task(
    p_organisation uuid, p_task uuid, p_status text, p_answer text, p_error jsonb
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    t     record;
    child record;
begin
    perform close_open_calls(p_organisation, p_task, p_status);
    select s.status, s.kind, s.parent_task_id into t from tasks s
     where s.organisation_id = p_organisation and s.task_id = p_task for no key update;
    if not found then
        raise exception 'no such task' using errcode = 'OV003';
    end if;
    if t.status in ('succeeded', 'failed', 'cancelled', 'discarded') then
        return false;
    end if;
    if exists (select from holds x where x.organisation_id = p_organisation
                and x.task_id = p_task and x.state = 'held') then
        -- Admitted since the open calls were closed. Its budgets come before the task in the order
        -- of locks, so all of this is done again from the beginning.
        raise exception 'a call was admitted meanwhile' using errcode = '40001';
    end if;
    for child in
        select c.task_id from tasks c
         where c.organisation_id = p_organisation and c.parent_task_id = p_task
           and c.status = 'accepted'
         order by c.task_id
    loop
        perform finish_task(p_organisation, child.task_id, 'cancelled', null, null);
    end loop;
    if t.kind = 'map' then
        update map_items m set status = 'skipped'
         where m.organisation_id = p_organisation and m.task_id = p_task and m.status = 'waiting';
    end if;
    update tasks s
       set status = p_status, answer = p_answer, error = p_error, finished_at = now()
     where s.organisation_id = p_organisation and s.task_id = p_task;
    perform push_event(p_organisation, p_task, null, 'task.' || p_status,
        (select jsonb_strip_nulls(jsonb_build_object(
            'answer', p_answer, 'error', p_error, 'steps', s.steps,
            'usage', jsonb_build_object('prompt_tokens', s.prompt_tokens,
                'completion_tokens', s.completion_tokens, 'cached_tokens', s.cached_tokens),
            'cost', jsonb_build_object('billed_usd', s.billed_usd::text,
                'waste_usd', s.waste_usd::text, 'saved_usd', s.saved_usd::text),
            'progress', case t.kind when 'map' then map_progress(p_organisation, p_task) end))
           from tasks s where s.organisation_id = p_organisation and s.task_id = p_task),
        'task.finished');
    if t.parent_task_id is not null then
        update map_items m set status = p_status
         where m.organisation_id = p_organisation and m.item_task_id = p_task;
    end if;
    return true;
end $$;

-- Notes a wish on one task.
create function note_wish(p_organisation uuid, p_task uuid, p_paused boolean) returns int
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    number int;
begin
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
    return number;
end $$;

-- Notes the wish that a task and everything below it pauses or goes on, once, with its events.
create or replace function steer_task(
    p_organisation uuid, p_task uuid, p_paused boolean,
    out ended boolean, out changed boolean, out number int
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    t     record;
    below record;
begin
    select s.paused_at, s.finished_at, s.root_task_id into t from tasks s
     where s.organisation_id = p_organisation and s.task_id = p_task for no key update;
    if not found then
        raise exception 'no such task' using errcode = 'OV003';
    end if;
    ended := t.finished_at is not null;
    changed := not ended and (t.paused_at is not null) <> p_paused;
    if changed then
        number := note_wish(p_organisation, p_task, p_paused);
    else
        select w.number into number from task_steering w
         where w.organisation_id = p_organisation and w.task_id = p_task;
    end if;
    if ended then
        return;
    end if;
    for below in
        select s.task_id from tasks s
         where s.organisation_id = p_organisation and s.root_task_id = t.root_task_id
           and s.parent_task_id is not null and p_task = any (s.ancestors)
           and s.finished_at is null and (s.paused_at is not null) <> p_paused
         order by s.task_id for no key update
    loop
        perform note_wish(p_organisation, below.task_id, p_paused);
    end loop;
end $$;

-- What a task and everything below it cost; `task_id` is the task a caller submitted.
create view spend_by_task_tree with (security_invoker = true) as
    select c.organisation_id, c.organisation, t.root_task_id as task_id,
           min(c.started_at) as started_at, count(distinct c.task_id) as tasks,
           count(*) as attempts, count(distinct c.call_key) as calls,
           sum(c.uncached_input_tokens) as uncached_input_tokens,
           sum(c.cached_input_tokens) as cached_input_tokens,
           sum(c.output_tokens) as output_tokens, sum(c.billed_usd) as billed_usd,
           sum(c.waste_usd) as waste_usd, sum(c.saved_usd) as saved_usd
      from spend_lines c
      join tasks t on t.organisation_id = c.organisation_id and t.task_id = c.task_id
     group by c.organisation_id, c.organisation, t.root_task_id;
grant select on spend_by_task_tree to overline_app, overline_reader;
