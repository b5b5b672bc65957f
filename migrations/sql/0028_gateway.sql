-- Word of a soft budget that is passed, tasks that visibly wait for a budget, and calls that end
-- when they are asked to, whichever process makes them.

-- Who is told, the first time in a period, that a soft budget is passed: `url` and `secret`.
alter table budget_rules add column webhook jsonb;
-- A delivery that is not about a task's end says what is in `said`.
-- squawk-ignore ban-drop-not-null
alter table webhook_deliveries alter column task_id drop not null;
alter table webhook_deliveries
    add column rule_id uuid,
    add column said    jsonb,
    -- squawk-ignore constraint-missing-not-valid
    add constraint webhook_deliveries_about check (num_nonnulls(task_id, said) = 1);
-- squawk-ignore require-concurrent-index-creation
create index webhook_deliveries_of_rule on webhook_deliveries (organisation_id, rule_id)
    where rule_id is not null;

create or replace function rule_document(r budget_rules) returns jsonb
    language sql immutable set search_path = pg_catalog, public, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('scope', r.scope, 'subject', r.subject,
        'period', r.period, 'time_zone', r.time_zone, 'cap_usd', r.cap_usd::text, 'hard', r.hard,
        'webhook', r.webhook))
$$;

-- A trigger and not a line in admission: whichever statement warns, now or later, files it.
create function file_budget_warning() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    insert into webhook_deliveries (organisation_id, rule_id, event, url, secret, said)
    select new.organisation_id, r.rule_id, 'budget.warning', r.webhook ->> 'url',
           r.webhook ->> 'secret',
           jsonb_build_object(
               'budget_id', r.rule_id, 'scope', r.scope,
               'subject', substring(new.window_key from '^(.*)[|][^|]*$'),
               'period', r.period, 'time_zone', r.time_zone,
               'window', substring(new.window_key from '[^|]*$'),
               'limit_usd', new.soft_usd::text,
               'spent_usd', (new.spent_usd + new.overage_usd)::text,
               'held_usd', new.held_usd::text)
      from budget_rules r
     where r.organisation_id = new.organisation_id and r.rule_id = new.scope_id
       and jsonb_typeof(r.webhook) = 'object';
    return null;
end $$;
create trigger file_budget_warning after update of warned_at on budgets
    for each row when (old.warned_at is null and new.warned_at is not null)
    execute function file_budget_warning();

-- squawk-ignore ban-drop-function
drop function begin_webhook(uuid, uuid);
-- Counts an attempt and returns what is to be said; nothing when there is nothing to say any more.
create function begin_webhook(p_organisation uuid, p_delivery uuid)
    returns table (task_id uuid, event text, url text, secret text, attempts int, said jsonb,
                   filed_at timestamptz, status text, answer text, error jsonb, steps int,
                   prompt_tokens bigint, completion_tokens bigint, cached_tokens bigint,
                   billed_usd numeric, waste_usd numeric, saved_usd numeric, user_id text,
                   tags jsonb, created_at timestamptz, finished_at timestamptz)
    language sql set search_path = pg_catalog, public, pg_temp as $$
    with begun as (
        update webhook_deliveries w
           set attempts = w.attempts + 1, last_attempt_at = now(), next_attempt_at = null,
               started_at = coalesce(w.started_at, now())
         where w.organisation_id = p_organisation and w.delivery_id = p_delivery
           and w.state = 'pending'
        returning w.task_id, w.event, w.url, w.secret, w.attempts, w.said, w.created_at
    )
    select b.task_id, b.event, b.url, b.secret, b.attempts, b.said, b.created_at, t.status,
           t.answer, t.error, t.steps, t.prompt_tokens, t.completion_tokens, t.cached_tokens,
           t.billed_usd, t.waste_usd, t.saved_usd, t.user_id, t.tags, t.created_at, t.finished_at
      from begun b
      left join tasks t on t.organisation_id = p_organisation and t.task_id = b.task_id
$$;

-- squawk-ignore ban-drop-function
drop function set_budget_rule(uuid, text, text, text, text, text, numeric, boolean);
-- Sets a rule, or changes the cap of the one there is of the same subject and period; the windows
-- that are open follow. A cap below what is spent and held is raised to that in them: it stops new
-- calls, while those in flight stay covered. Null: there is no such team or key.
create function set_budget_rule(
    p_organisation uuid, p_actor text, p_scope text, p_subject text, p_period text,
    p_time_zone text, p_cap numeric, p_hard boolean, p_webhook jsonb default null
) returns uuid
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    before jsonb;
    made   uuid;
    known  boolean;
begin
    known := case when p_subject = '*' then true
        when p_scope = 'key' then exists (select from api_keys k
            where k.organisation_id = p_organisation and k.key_id::text = p_subject)
        when p_scope = 'team' then exists (select from teams t
            where t.organisation_id = p_organisation and t.team_id::text = p_subject)
        when p_scope = 'organisation' then p_subject = p_organisation::text
        else true end;
    if not known then
        return null;
    end if;
    perform pg_advisory_xact_lock(hashtext('overline.budget_rules'), hashtext(p_organisation::text));
    select rule_document(r) into before from budget_rules r
     where r.organisation_id = p_organisation and r.scope = p_scope and r.subject = p_subject
       and r.period = p_period and r.hard = p_hard;
    insert into budget_rules as r
        (organisation_id, ordinal, scope, subject, period, time_zone, cap_usd, hard, webhook)
    select p_organisation, coalesce(max(x.ordinal), 0) + 1, p_scope, p_subject, p_period,
           p_time_zone, p_cap, p_hard, p_webhook
      from budget_rules x where x.organisation_id = p_organisation
    on conflict (organisation_id, scope, subject, period, hard) do update
       set cap_usd = excluded.cap_usd, time_zone = excluded.time_zone, webhook = excluded.webhook
    returning r.rule_id into made;
    update budgets g
       set cap_usd = case when p_hard then greatest(p_cap, g.held_usd + g.spent_usd) end,
           soft_usd = case when not p_hard then p_cap end
     where g.organisation_id = p_organisation and g.scope_id = made;
    perform audit_append(p_actor, 'budget.set', made::text, jsonb_build_object('before', before,
        'after', (select rule_document(r) from budget_rules r
                   where r.organisation_id = p_organisation and r.rule_id = made)));
    return made;
end $$;

-- Gives a task that runs another budget of its own; one that had none counts from here. A cap below
-- what is spent and held is raised to that. Null: there is no such task, or it has ended.
create function set_task_budget(
    p_organisation uuid, p_actor text, p_task uuid, p_cap numeric
) returns uuid
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    nested int;
    b      record;
begin
    select cardinality(t.ancestors) into nested from tasks t
     where t.organisation_id = p_organisation and t.task_id = p_task
       and t.finished_at is null and t.kind <> 'call';
    if not found then
        return null;
    end if;
    -- The budget before the task, as in admission.
    insert into budgets as g (organisation_id, scope, scope_id, cap_usd, nesting)
    values (p_organisation, 'task', p_task, p_cap, nested)
    on conflict (organisation_id, scope_id, window_key) do update
       set cap_usd = greatest(p_cap, g.held_usd + g.spent_usd)
    returning g.budget_id, old.cap_usd as before, g.cap_usd as after into b;
    update tasks t set max_cost_usd = b.after
     where t.organisation_id = p_organisation and t.task_id = p_task;
    perform audit_append(p_actor, 'budget.set', b.budget_id::text, jsonb_build_object(
        'before', jsonb_build_object('scope', 'task', 'subject', p_task, 'cap_usd', b.before::text),
        'after', jsonb_build_object('scope', 'task', 'subject', p_task, 'cap_usd', b.after::text)));
    return b.budget_id;
end $$;

-- Tasks that are paused because a budget above them is spent: `since` is null when one goes on, or
-- when a person paused it meanwhile. `reason` says which budget, in numbers.
create table budget_waits (
    organisation_id uuid not null,
    task_id         uuid not null,
    since           timestamptz,
    times           int not null default 1,
    needed_usd      numeric(18, 9) not null,
    reason          jsonb not null,
    primary key (organisation_id, task_id),
    foreign key (organisation_id, task_id) references tasks
);
create index budget_waits_now on budget_waits (since) where since is not null;
alter table budget_waits enable row level security;
alter table budget_waits force row level security;
create policy tenant on budget_waits
    using      (organisation_id = current_setting('overline.organisation_id')::uuid)
    with check (organisation_id = current_setting('overline.organisation_id')::uuid);
grant select, insert, update on budget_waits to overline_app;
grant select on budget_waits to overline_reader;
grant select, update on budget_waits to overline_definer;
grant select on budgets, budget_rules to overline_definer;

-- The budgets above a task that have no room for an amount, first the one that refuses.
create function budgets_without_room(p_organisation uuid, p_task uuid, p_amount numeric)
    returns table (budget_id uuid, scope text, subject text, "window" text, limit_usd numeric,
                   spent_usd numeric, held_usd numeric)
    language sql stable set search_path = pg_catalog, public, pg_temp as $$
    select case when g.window_key = '' then g.budget_id else g.scope_id end, g.scope,
           case when g.window_key = '' then g.scope_id::text
                else substring(g.window_key from '^(.*)[|][^|]*$') end,
           case when g.window_key = '' then 'total'
                else substring(g.window_key from '[^|]*$') end,
           g.cap_usd, g.spent_usd + g.overage_usd, g.held_usd
      from tasks t
      join budgets g on g.organisation_id = t.organisation_id
       and ((g.window_key = ''
             and g.scope_id = any (array[t.task_id, t.key_id, t.team_id, t.organisation_id]
                                   || t.ancestors))
            or (g.scope_id, g.window_key) in (
                select w.rule_id, w.window_key
                  from rule_windows(t.organisation_id, t.team_id, t.key_id, t.user_id,
                                    t.agent_name, t.tags) w))
     where t.organisation_id = p_organisation and t.task_id = p_task
       and g.spent_usd + g.overage_usd + g.held_usd + p_amount > g.cap_usd
     order by g.depth
$$;

-- Pauses a task whose next call a budget does not cover, with its event, once. `number` is that of
-- the newest wish: a workflow that has heard of a newer one goes on. Null: it has ended.
create function wait_for_budget(
    p_organisation uuid, p_task uuid, p_needed numeric, p_scope text,
    out number int, out reason jsonb
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    t record;
    b record;
begin
    select s.paused_at, s.finished_at into t from tasks s
     where s.organisation_id = p_organisation and s.task_id = p_task for no key update;
    if not found then
        raise exception 'no such task' using errcode = 'OV003';
    end if;
    if t.finished_at is not null then
        return;
    end if;
    if t.paused_at is not null then
        -- This attempt before, or a person whose wish is on its way: it stands.
        select w.number into number from task_steering w
         where w.organisation_id = p_organisation and w.task_id = p_task;
        select w.reason into reason from budget_waits w
         where w.organisation_id = p_organisation and w.task_id = p_task and w.since is not null;
        return;
    end if;
    select * into b from budgets_without_room(p_organisation, p_task, p_needed) limit 1;
    reason := jsonb_strip_nulls(jsonb_build_object('reason', 'budget_exhausted',
        'budget_id', b.budget_id, 'scope', coalesce(b.scope, p_scope), 'subject', b.subject,
        'window', b.window, 'limit_usd', b.limit_usd::text, 'spent_usd', b.spent_usd::text,
        'held_usd', b.held_usd::text, 'needed_usd', p_needed::text));
    update tasks s set paused_at = now()
     where s.organisation_id = p_organisation and s.task_id = p_task;
    insert into budget_waits as w (organisation_id, task_id, since, needed_usd, reason)
    values (p_organisation, p_task, now(), p_needed, reason)
    on conflict (organisation_id, task_id) do update
       set since = now(), times = w.times + 1, needed_usd = excluded.needed_usd,
           reason = excluded.reason;
    -- Its workflow knows: it is the one that asked.
    insert into task_steering as w (organisation_id, task_id, number, sent_number, paused)
    values (p_organisation, p_task, 1, 1, true)
    on conflict (organisation_id, task_id) do update
       set number = w.number + 1, sent_number = w.number + 1, paused = true, wished_at = now()
    returning w.number into number;
    perform push_event(p_organisation, p_task, null, 'task.paused', reason, 'steering.' || number);
end $$;

-- Notes a wish on one task; whoever wishes something has it wait for no budget any more.
create or replace function note_wish(p_organisation uuid, p_task uuid, p_paused boolean) returns int
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    number int;
begin
    update budget_waits w set since = null
     where w.organisation_id = p_organisation and w.task_id = p_task and w.since is not null;
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

-- Whether a task waits for a budget.
create function waits_for_budget(p_organisation uuid, p_task uuid) returns boolean
    language sql stable set search_path = pg_catalog, public, pg_temp as $$
    select exists (select from budget_waits w where w.organisation_id = p_organisation
                    and w.task_id = p_task and w.since is not null)
$$;

-- Notes the wish that a task and everything below it pauses or goes on, once, with its events. One
-- that waits for a budget and is paused waits for a person from then on.
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
    changed := not ended
        and ((t.paused_at is not null) <> p_paused
             or (p_paused and waits_for_budget(p_organisation, p_task)));
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
           and s.finished_at is null
           and ((s.paused_at is not null) <> p_paused
                or (p_paused and waits_for_budget(p_organisation, s.task_id)))
         order by s.task_id for no key update
    loop
        perform note_wish(p_organisation, below.task_id, p_paused);
    end loop;
end $$;

-- Lets one task go on that waits for a budget, and nothing below it; false: it does not wait.
create function stop_waiting(p_organisation uuid, p_task uuid) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    perform from tasks s
     where s.organisation_id = p_organisation and s.task_id = p_task and s.finished_at is null
       for no key update;
    if not found or not waits_for_budget(p_organisation, p_task) then
        return false;
    end if;
    perform note_wish(p_organisation, p_task, false);
    return true;
end $$;

-- Waiting tasks of every organisation whose budgets have room again. One that was let go in vain is
-- let go again less and less often, for others wait for the same room; `p_organisation`: those of
-- one, at once, because somebody just changed its budgets.
create function tasks_with_room(p_organisation uuid, p_limit int)
    returns table (organisation_id uuid, task_id uuid)
    language sql volatile security definer set search_path = pg_catalog, public, pg_temp as $$
    update budget_waits w set since = null
      from tasks t
     where w.since is not null and t.organisation_id = w.organisation_id
       and t.task_id = w.task_id and t.finished_at is not null;
    select w.organisation_id, w.task_id
      from budget_waits w
     where w.since is not null
       and (w.organisation_id = p_organisation
            or (p_organisation is null
                and w.since < now() - make_interval(secs => least(2 ^ least(w.times, 9), 300))))
       and not exists (select from budgets_without_room(w.organisation_id, w.task_id,
                                                        w.needed_usd))
     order by w.since limit p_limit
$$;

-- When a call was asked to end: its process, or who takes it over, does that.
alter table calls add column end_wished_at timestamptz;

-- Asks a call to end, and tells every process that makes calls. Says whose it is, a `process`' or
-- its `workflow`'s; null: it has ended.
create function wish_call_ended(p_organisation uuid, p_task uuid) returns text
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    c record;
begin
    update calls x set end_wished_at = coalesce(x.end_wished_at, now())
     where x.organisation_id = p_organisation and x.task_id = p_task and x.ended_at is null
    returning x.process_id into c;
    if not found then
        return null;
    end if;
    perform pg_notify('overline_call', p_task::text);
    return case when c.process_id is null then 'workflow' else 'process' end;
end $$;

-- The calls of a process that were asked to end, for one that was not told.
create function calls_to_end(p_process uuid) returns table (task_id uuid)
    language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select c.task_id from calls c
     where c.process_id = p_process and c.end_wished_at is not null
$$;

do $$
declare name text;
begin
    grant create on schema public to overline_definer;
    foreach name in array array['tasks_with_room(uuid, int)', 'calls_to_end(uuid)']
    loop
        execute format('revoke execute on function %s from public', name);
        execute format('grant execute on function %s to overline_app', name);
        execute format('alter function %s owner to overline_definer', name);
    end loop;
    revoke create on schema public from overline_definer;
end $$;
