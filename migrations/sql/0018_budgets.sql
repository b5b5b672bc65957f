-- Budgets by rule: of whom, over which period, hard or soft, several at once.

-- A rule makes rows of `budgets`, one a subject and period, when the first call of it is admitted.
-- Subject: an id, a user, `name=value` of a tag, an agent's name; `*`, or `name=*`: each by itself.
-- `ordinal` is the rule's place in the order of locks: unlike for any two, so chains cannot deadlock.
create table budget_rules (
    organisation_id uuid not null references organisations,
    rule_id         uuid not null default uuidv7(),
    ordinal         smallint not null check (ordinal between 1 and 1000),
    scope           text not null
                      check (scope in ('organisation', 'team', 'key', 'user', 'tag', 'agent')),
    subject         text not null check (subject <> ''),
    period          text not null check (period in ('day', 'week', 'month', 'total')),
    time_zone       text not null default 'UTC',
    cap_usd         numeric(18, 9) not null check (cap_usd >= 0),
    hard            boolean not null default true,
    created_at      timestamptz not null default now(),
    primary key (organisation_id, rule_id),
    unique (organisation_id, ordinal),
    unique (organisation_id, scope, subject, period, hard)
);
alter table budget_rules enable row level security;
alter table budget_rules force row level security;
create policy tenant on budget_rules
    using      (organisation_id = current_setting('overline.organisation_id')::uuid)
    with check (organisation_id = current_setting('overline.organisation_id')::uuid);
grant select, insert, update, delete on budget_rules to overline_app;
grant select on budget_rules to overline_reader;

-- Rows that a rule made have its id as scope_id. A soft row has no cap of its own: it warns.
alter table budgets
    add column window_key text not null default '',
    add column ordinal    smallint not null default 0,
    add column soft_usd   numeric(18, 9) check (soft_usd >= 0),
    add column warned_at  timestamptz;
alter table budgets
    -- squawk-ignore ban-drop-constraint
    drop constraint budgets_scope_check,
    -- squawk-ignore constraint-missing-not-valid
    add constraint budgets_scope_check check (
        scope in ('task', 'key', 'team', 'organisation', 'user', 'tag', 'agent')),
    -- squawk-ignore ban-drop-constraint
    drop constraint budgets_organisation_id_scope_id_key,
    -- squawk-ignore disallowed-unique-constraint, constraint-missing-not-valid
    add constraint budgets_window unique (organisation_id, scope_id, window_key);
alter table budgets alter column depth set expression as
    (case when ordinal > 0 then 3 + ordinal
          else case scope when 'task' then -nesting when 'key' then 1 when 'team' then 2
                          else 3 end end);

-- The current window of a period, as part of a row's key.
create function budget_window(p_period text, p_time_zone text, p_at timestamptz) returns text
    language sql stable set search_path = pg_catalog, public, pg_temp as $$
    select to_char(p_at at time zone p_time_zone,
                   case p_period when 'day' then 'YYYY-MM-DD' when 'week' then 'IYYY-"W"IW'
                                 when 'month' then 'YYYY-MM' else '"total"' end)
$$;

-- The rows that rules have for a call of a task, made if they are not there yet: before any budget
-- is locked, and in the order of locks.
create function rule_budgets(
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
        select r.rule_id, r.scope, r.ordinal, r.cap_usd, r.hard,
               m.subject || '|' || budget_window(r.period, r.time_zone, now()) as window_key
          from budget_rules r
         cross join lateral (
            select p_organisation::text as subject where r.scope = 'organisation'
            union all select p_team::text where r.scope = 'team'
            union all select p_key::text where r.scope = 'key'
            union all select t.user_id where r.scope = 'user'
            union all select t.agent_name where r.scope = 'agent'
            union all select g.key || '=' || g.value from jsonb_each_text(t.tags) g
                       where r.scope = 'tag') m
         where r.organisation_id = p_organisation and m.subject is not null
           and (r.subject = m.subject or r.subject = '*'
                or (r.scope = 'tag' and r.subject = split_part(m.subject, '=', 1) || '=*'))
         order by r.ordinal, m.subject
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

-- What the audit log says of a rule.
create function rule_document(r budget_rules) returns jsonb
    language sql immutable set search_path = pg_catalog, public, pg_temp as $$
    select jsonb_build_object('scope', r.scope, 'subject', r.subject, 'period', r.period,
        'time_zone', r.time_zone, 'cap_usd', r.cap_usd::text, 'hard', r.hard)
$$;

-- Sets a rule, or changes the cap of the one there is of the same subject and period; the windows
-- that are open follow. A cap below what is spent and held is raised to that in them: it stops new
-- calls, while those in flight stay covered. Null: there is no such team or key.
create function set_budget_rule(
    p_organisation uuid, p_actor text, p_scope text, p_subject text, p_period text,
    p_time_zone text, p_cap numeric, p_hard boolean
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
        (organisation_id, ordinal, scope, subject, period, time_zone, cap_usd, hard)
    select p_organisation, coalesce(max(x.ordinal), 0) + 1, p_scope, p_subject, p_period,
           p_time_zone, p_cap, p_hard
      from budget_rules x where x.organisation_id = p_organisation
    on conflict (organisation_id, scope, subject, period, hard) do update
       set cap_usd = excluded.cap_usd, time_zone = excluded.time_zone
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

create function remove_budget_rule(p_organisation uuid, p_actor text, p_rule uuid) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    gone jsonb;
begin
    delete from budget_rules r
     where r.organisation_id = p_organisation and r.rule_id = p_rule
    returning rule_document(r) into gone;
    if gone is null then
        return false;
    end if;
    -- Its rows stay, for what was held under it.
    update budgets g set cap_usd = null, soft_usd = null
     where g.organisation_id = p_organisation and g.scope_id = p_rule;
    perform audit_append(p_actor, 'budget.removed', p_rule::text,
                         jsonb_build_object('before', gone, 'after', null));
    return true;
end $$;
