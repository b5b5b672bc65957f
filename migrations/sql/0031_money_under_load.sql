-- What holds when calls are in flight: caps that are lowered, limits that are changed, tokens that
-- are given back, and who waits for whom.

-- The cap that was asked for, where one was set anew: `cap_usd` is above it while more is held and
-- spent, and comes down with what is given back. Null: `cap_usd` is as it was made.
alter table budgets add column wished_usd numeric(18, 9) check (wished_usd >= 0);

-- A wished cap as it can be: what is held and spent stays covered. Null: no cap.
create function raised_cap(p_wish numeric, p_held numeric, p_spent numeric) returns numeric
    language sql immutable set search_path = pg_catalog, public, pg_temp as $$
    select case when p_wish is not null then greatest(p_wish, p_held + p_spent) end
$$;

-- Whose a window of a rule is, and which one: the subject may have any letters, the window has no bar.
create function window_of(p_window_key text, out subject text, out "window" text)
    language sql immutable set search_path = pg_catalog, public, pg_temp as $$
    select substring(p_window_key from '^(.*)[|][^|]*$'), substring(p_window_key from '[^|]*$')
$$;

-- The budgets of a call's windows; a window that nobody spent in yet is opened.
create or replace function rule_budgets(
    p_organisation uuid, p_team uuid, p_key uuid, p_task uuid
) returns uuid[]
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    t     record;
    w     record;
    ids   uuid[] := '{}';
    id    uuid;
    rule  record;
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
            -- By the rule as it is now, and until this ends: who changes its cap changes the windows
            -- that are there, and must find this one.
            select r.cap_usd, r.hard into rule from budget_rules r
             where r.organisation_id = p_organisation and r.rule_id = w.rule_id for share;
            continue when not found;
            insert into budgets (organisation_id, scope, scope_id, window_key, ordinal, cap_usd,
                                 soft_usd)
            values (p_organisation, w.scope, w.rule_id, w.window_key, w.ordinal,
                    case when rule.hard then rule.cap_usd end,
                    case when not rule.hard then rule.cap_usd end)
            on conflict do nothing;
            select g.budget_id into id from budgets g
             where g.organisation_id = p_organisation and g.scope_id = w.rule_id
               and g.window_key = w.window_key;
        end if;
        ids := ids || id;
    end loop;
    return ids;
end $$;

-- May this call happen, and is its worst case covered at every level above it: the task, the tasks
-- it is a child of, key, team, organisation, rules? `patient`: the task is a child, so what its
-- relatives hold is worth waiting for.
create or replace function admit(
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
        select g.budget_id, g.cap_usd, g.soft_usd, g.window_key, g.warned_at, g.held_usd,
               g.spent_usd + g.overage_usd as spent, g.cap_tokens, g.spent_tokens,
               case when g.scope = 'task' and g.scope_id <> p_task then 'parent'
                    else g.scope end as scope
          from budgets g
         where g.organisation_id = p_organisation
           and ((g.scope_id = any (array[p_task, p_key, p_team, p_organisation] || t.ancestors)
                 and g.window_key = '') or g.budget_id = any (rules))
         order by g.depth, g.budget_id
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
                'subject', (window_of(b.window_key)).subject,
                'period', (window_of(b.window_key))."window", 'limit_usd', b.soft_usd::text,
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
            'scope', w.scope, 'subject', (window_of(w.window_key)).subject,
            'period', (window_of(w.window_key))."window", 'limit_usd', w.soft_usd::text,
            'spent_usd', w.spent_usd::text, 'held_usd', w.held_usd::text));
    end loop;
end $$;

-- A trigger and not a line in admission: whichever statement warns, now or later, files it.
create or replace function file_budget_warning() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    insert into webhook_deliveries (organisation_id, rule_id, event, url, secret, said)
    select new.organisation_id, r.rule_id, 'budget.warning', r.webhook ->> 'url',
           r.webhook ->> 'secret',
           jsonb_build_object(
               'budget_id', r.rule_id, 'scope', r.scope,
               'subject', (window_of(new.window_key)).subject,
               'period', r.period, 'time_zone', r.time_zone,
               'window', (window_of(new.window_key))."window",
               'limit_usd', new.soft_usd::text,
               'spent_usd', (new.spent_usd + new.overage_usd)::text,
               'held_usd', new.held_usd::text)
      from budget_rules r
     where r.organisation_id = new.organisation_id and r.rule_id = new.scope_id
       and jsonb_typeof(r.webhook) = 'object';
    return null;
end $$;

-- The budgets above a task that have no room for an amount, first the one that refuses.
create or replace function budgets_without_room(p_organisation uuid, p_task uuid, p_amount numeric)
    returns table (budget_id uuid, scope text, subject text, "window" text, limit_usd numeric,
                   spent_usd numeric, held_usd numeric)
    language sql stable set search_path = pg_catalog, public, pg_temp as $$
    select case when g.window_key = '' then g.budget_id else g.scope_id end, g.scope,
           coalesce((window_of(g.window_key)).subject, g.scope_id::text),
           case when g.window_key = '' then 'total'
                else (window_of(g.window_key))."window" end,
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

-- Sets a rule, or changes the cap of the one there is of the same subject and period; the windows
-- that are open follow. A cap below what is spent and held is raised to that in them, until calls in
-- flight have given back what they do not need. Null: there is no such team or key.
create or replace function set_budget_rule(
    p_organisation uuid, p_actor text, p_scope text, p_subject text, p_period text,
    p_time_zone text, p_cap numeric, p_hard boolean, p_webhook jsonb default null
) returns uuid
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    before jsonb;
    made   uuid;
    known  boolean;
    free   smallint;
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
    begin
        perform budget_window(p_period, p_time_zone, now());
    exception when invalid_parameter_value then
        raise exception 'The database does not know this time zone.' using errcode = 'OV012';
    end;
    perform pg_advisory_xact_lock(hashtext('overline.budget_rules'), hashtext(p_organisation::text));
    select rule_document(r) into before from budget_rules r
     where r.organisation_id = p_organisation and r.scope = p_scope and r.subject = p_subject
       and r.period = p_period and r.hard = p_hard;
    update budget_rules r
       set cap_usd = p_cap, time_zone = p_time_zone, webhook = p_webhook
     where r.organisation_id = p_organisation and r.scope = p_scope and r.subject = p_subject
       and r.period = p_period and r.hard = p_hard
    returning r.rule_id into made;
    if not found then
        select min(n) into free from generate_series(1, 1000) n
         where not exists (select from budget_rules x
                            where x.organisation_id = p_organisation and x.ordinal = n);
        if free is null then
            raise exception 'There are 1000 budgets by rule already.' using errcode = 'OV013';
        end if;
        insert into budget_rules as r
            (organisation_id, ordinal, scope, subject, period, time_zone, cap_usd, hard, webhook)
        values (p_organisation, free, p_scope, p_subject, p_period, p_time_zone, p_cap, p_hard,
                p_webhook)
        returning r.rule_id into made;
    end if;
    perform from budgets g
      where g.organisation_id = p_organisation and g.scope_id = made
      order by g.depth, g.budget_id for no key update;
    update budgets g
       set cap_usd = case when p_hard then raised_cap(p_cap, g.held_usd, g.spent_usd) end,
           wished_usd = case when p_hard then p_cap end,
           soft_usd = case when not p_hard then p_cap end,
           -- Passed once more, a raised one warns once more.
           warned_at = case when p_cap > g.soft_usd then null else g.warned_at end
     where g.organisation_id = p_organisation and g.scope_id = made;
    perform audit_append(p_actor, 'budget.set', made::text, jsonb_build_object('before', before,
        'after', (select rule_document(r) from budget_rules r
                   where r.organisation_id = p_organisation and r.rule_id = made)));
    return made;
end $$;

create or replace function remove_budget_rule(p_organisation uuid, p_actor text, p_rule uuid) returns boolean
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
    perform from budgets g
      where g.organisation_id = p_organisation and g.scope_id = p_rule
      order by g.depth, g.budget_id for no key update;
    update budgets g set cap_usd = null, wished_usd = null, soft_usd = null
     where g.organisation_id = p_organisation and g.scope_id = p_rule;
    perform audit_append(p_actor, 'budget.removed', p_rule::text,
                         jsonb_build_object('before', gone, 'after', null));
    return true;
end $$;

-- Gives a task that runs another budget of its own; one that had none counts from here. A cap below
-- what is spent and held is raised to that, until calls in flight have given back what they do not
-- need. Null: there is no such task, or it has ended.
create or replace function set_task_budget(
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
       set cap_usd = raised_cap(p_cap, g.held_usd, g.spent_usd), wished_usd = p_cap
    returning g.budget_id, coalesce(old.wished_usd, old.cap_usd) as before into b;
    update tasks t set max_cost_usd = p_cap
     where t.organisation_id = p_organisation and t.task_id = p_task;
    perform audit_append(p_actor, 'budget.set', b.budget_id::text, jsonb_build_object(
        'before', jsonb_build_object('scope', 'task', 'subject', p_task, 'cap_usd', b.before::text),
        'after', jsonb_build_object('scope', 'task', 'subject', p_task,
                                    'cap_usd', p_cap::numeric(18, 9)::text)));
    return b.budget_id;
end $$;

-- Ends a call: books its attempts, releases its hold, charges the budgets, keeps the answer, tells
-- the readers. Nothing here depends on amounts being small enough: what exceeds the hold goes to
-- overage. The answer is kept before the budgets and the audit chain are locked, as a hit does.
-- `p_cache_answer`: the whole answer of a call, kept beside its text.
-- squawk-ignore ban-drop-function
drop function settle(uuid, uuid, int, text, text, text, jsonb, jsonb, text, jsonb, text, text,
                     uuid[], float8, uuid, text, text, jsonb, text);
create function settle(
    p_organisation uuid, p_task uuid, p_step int, p_call_key text, p_outcome text, p_winner text,
    p_decision jsonb, p_provenance jsonb, p_text text, p_tool_call jsonb, p_finish_reason text,
    p_cache_key text, p_cache_collections uuid[], p_cache_ttl_s float8, p_cache_hit uuid,
    p_finish_status text, p_finish_answer text, p_finish_error jsonb, p_trace text,
    p_cache_answer jsonb default null,
    out billed_usd numeric, out waste_usd numeric, out saved_usd numeric, out overage_usd numeric,
    out prompt_tokens int, out completion_tokens int, out cached_tokens int,
    out already_settled boolean
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    h           record;
    t           record;
    sums        record;
    win         record;
    hit_model   text;
    hit_channel text;
    hit_version text;
    hit_worth   numeric;
    -- Callers need not carry a long text through their own history: the journal has it, or the
    -- cache entry that answered.
    v_text      text := p_text;
    v_tool_call jsonb := p_tool_call;
    v_finish    text := p_finish_reason;
begin
    select * into h from holds x
     where x.organisation_id = p_organisation and x.call_key = p_call_key
       for no key update;
    if not found then
        raise exception 'the call was never admitted' using errcode = 'OV001';
    end if;
    if h.state = 'settled' then
        billed_usd := h.billed_usd;
        waste_usd := h.waste_usd;
        saved_usd := h.saved_usd;
        overage_usd := h.overage_usd;
        prompt_tokens := h.prompt_tokens;
        completion_tokens := h.completion_tokens;
        cached_tokens := h.cached_tokens;
        already_settled := true;
        return;
    end if;
    already_settled := false;
    saved_usd := 0;
    select s.user_id, s.tags, s.route, s.workflow_id, s.run_id into t from tasks s
     where s.organisation_id = p_organisation and s.task_id = h.task_id;

    -- From here no attempt of this call can write any more.
    update generations g set state = 'settled'
     where g.organisation_id = p_organisation and g.call_key = p_call_key;
    if p_finish_status is not null then
        -- Before the task row is locked, for the order of locks; this call is not among them.
        perform close_open_calls(p_organisation, h.task_id, p_finish_status, p_call_key);
    end if;

    select * into sums
      from book_attempts(p_organisation, p_call_key, p_winner, p_outcome, p_trace);
    billed_usd := sums.billed;
    waste_usd := sums.waste;
    prompt_tokens := sums.prompt;
    cached_tokens := sums.cached;
    completion_tokens := sums.output;

    if p_outcome = 'cached' then
        update cache_entries e set hits = e.hits + 1
         where e.organisation_id = p_organisation and e.cache_entry_id = p_cache_hit
        returning e.model, e.channel, e.model_version, e.billed_usd, coalesce(p_text, e.text),
                  coalesce(p_tool_call, e.tool_call), coalesce(p_finish_reason, e.finish_reason)
             into hit_model, hit_channel, hit_version, hit_worth, v_text, v_tool_call, v_finish;
        if found then
            saved_usd := hit_worth;
            insert into model_calls
                (organisation_id, started_at, ended_at, team_id, key_id, user_id, tags, task_id,
                 workflow_id, run_id, trace_id, step, call_key, candidate, epoch, route, model,
                 model_version, outcome, uncached_input_tokens, cached_input_tokens,
                 output_tokens, wasted_uncached_input_tokens, wasted_cached_input_tokens,
                 wasted_output_tokens, cost_usd, billed_usd, waste_usd, saved_usd, usage_source)
            values (p_organisation, h.created_at, clock_timestamp(), h.team_id, h.key_id,
                    t.user_id, t.tags, h.task_id, t.workflow_id, t.run_id, p_trace, h.step,
                    p_call_key, 0, 0, t.route, hit_model, hit_version, 'cached',
                    0, 0, 0, 0, 0, 0, 0, 0, 0, saved_usd, 'cache');
        end if;
    end if;

    select g.model, g.channel, g.model_version, g.restarted_after into win from generations g
     where g.organisation_id = p_organisation and g.generation_key = p_winner;
    if v_text is null and p_winner is not null then
        select string_agg(c.text, '' order by c.seq) into v_text from token_chunks c
         where c.organisation_id = p_organisation and c.step_key = p_winner
           and c.epoch > win.restarted_after;
    end if;

    if p_cache_key is not null and p_outcome = 'succeeded' and win.model is not null then
        -- Only if nothing the answer rests on changed since the call was admitted: every change
        -- must have been visible to the admission, so what was read is what is there now.
        insert into cache_entries as e
            (organisation_id, key, text, channel, tool_call, finish_reason, model, model_version,
             prompt_tokens, completion_tokens, billed_usd, revisions, catalogue_digest, task_id,
             expires_at, answer)
        select p_organisation, p_cache_key,
               case when p_cache_answer is null then v_text else coalesce(p_text, '') end,
               win.channel, v_tool_call, v_finish, win.model, win.model_version,
               settle.prompt_tokens, settle.completion_tokens, settle.billed_usd,
               coalesce((select jsonb_object_agg(c.collection_id, c.revision) from collections c
                          where c.organisation_id = p_organisation
                            and c.collection_id = any (p_cache_collections)), '{}'),
               s.digest, h.task_id, now() + make_interval(secs => p_cache_ttl_s), p_cache_answer
          from catalogue_state s
         where pg_visible_in_snapshot(s.changed_in, h.admitted_under)
           and not exists (
               select from collections c
                where c.organisation_id = p_organisation
                  and c.collection_id = any (p_cache_collections)
                  and not pg_visible_in_snapshot(c.revised_in, h.admitted_under))
        on conflict (organisation_id, key) do update
           set text = excluded.text, channel = excluded.channel, tool_call = excluded.tool_call,
               finish_reason = excluded.finish_reason, model = excluded.model,
               model_version = excluded.model_version, prompt_tokens = excluded.prompt_tokens,
               completion_tokens = excluded.completion_tokens, billed_usd = excluded.billed_usd,
               revisions = excluded.revisions, catalogue_digest = excluded.catalogue_digest,
               task_id = excluded.task_id, expires_at = excluded.expires_at,
               answer = excluded.answer, created_at = now();
    end if;

    overage_usd := greatest(billed_usd - h.amount_usd, 0);
    perform from budgets g
      where g.organisation_id = p_organisation and g.budget_id = any (h.budget_ids)
      order by g.depth, g.budget_id for no key update;
    update budgets g
       set held_usd = g.held_usd - h.amount_usd,
           spent_usd = g.spent_usd + (settle.billed_usd - settle.overage_usd),
           overage_usd = g.overage_usd + settle.overage_usd,
           cap_usd = case when g.wished_usd is null then g.cap_usd
                          else raised_cap(g.wished_usd, g.held_usd - h.amount_usd, g.spent_usd
                                          + (settle.billed_usd - settle.overage_usd)) end
     where g.organisation_id = p_organisation and g.budget_id = any (h.budget_ids);
    update holds x
       set state = 'settled', settled_at = now(), outcome = p_outcome,
           billed_usd = settle.billed_usd, waste_usd = settle.waste_usd,
           saved_usd = settle.saved_usd, overage_usd = settle.overage_usd,
           prompt_tokens = settle.prompt_tokens, completion_tokens = settle.completion_tokens,
           cached_tokens = settle.cached_tokens
     where x.organisation_id = p_organisation and x.hold_id = h.hold_id;

    update tasks s
       set prompt_tokens = s.prompt_tokens + settle.prompt_tokens,
           completion_tokens = s.completion_tokens + settle.completion_tokens,
           cached_tokens = s.cached_tokens + settle.cached_tokens,
           billed_usd = s.billed_usd + settle.billed_usd,
           waste_usd = s.waste_usd + settle.waste_usd,
           saved_usd = s.saved_usd + settle.saved_usd
     where s.organisation_id = p_organisation and s.task_id = h.task_id;
    update steps s
       set status = p_outcome, model = coalesce(win.model, hit_model, s.model),
           decision = coalesce(p_decision, s.decision),
           provenance = coalesce(p_provenance, s.provenance), text = v_text,
           tool_call = v_tool_call, finish_reason = v_finish,
           prompt_tokens = s.prompt_tokens + settle.prompt_tokens,
           completion_tokens = s.completion_tokens + settle.completion_tokens,
           cached_tokens = s.cached_tokens + settle.cached_tokens,
           billed_usd = s.billed_usd + settle.billed_usd,
           waste_usd = s.waste_usd + settle.waste_usd,
           saved_usd = s.saved_usd + settle.saved_usd, ended_at = now()
     where s.organisation_id = p_organisation and s.task_id = h.task_id and s.step = h.step;

    if p_outcome = 'cached' and v_text <> '' then
        -- Nothing was generated, so nothing was streamed: give readers the words.
        perform push_event(p_organisation, h.task_id, h.step, 'text',
            jsonb_build_object('channel', hit_channel, 'text', v_text, 'model', hit_model,
                               'cached', true),
            'text.' || p_call_key);
    end if;
    perform push_event(p_organisation, h.task_id, h.step, 'step.completed',
        jsonb_strip_nulls(jsonb_build_object(
            'step', h.step, 'outcome', p_outcome, 'model', coalesce(win.model, hit_model),
            'tool_call', v_tool_call, 'finish_reason', v_finish,
            'usage', jsonb_build_object('prompt_tokens', settle.prompt_tokens,
                'completion_tokens', settle.completion_tokens,
                'cached_tokens', settle.cached_tokens),
            'cost', jsonb_build_object('billed_usd', settle.billed_usd::text,
                'waste_usd', settle.waste_usd::text, 'saved_usd', settle.saved_usd::text))),
        'step.completed.' || p_call_key);
    if p_finish_status is not null then
        perform finish_task(p_organisation, h.task_id, p_finish_status,
            coalesce(p_finish_answer, case p_finish_status when 'succeeded' then v_text end),
            p_finish_error);
    end if;

    if overage_usd > 0 then
        perform audit_append('overline', 'settle.overage', p_call_key, jsonb_build_object(
            'hold_usd', h.amount_usd::text, 'billed_usd', settle.billed_usd::text,
            'overage_usd', settle.overage_usd::text));
    end if;
    if sums.unpriced > 0 then
        perform audit_append('overline', 'settle.unpriced', p_call_key,
                             jsonb_build_object('attempts', sums.unpriced));
    end if;
end $$;

-- The second round trip: how the attempt ended, what it cost, what was answered, the end of the
-- task. Fenced (no row): somebody else has taken the call over.
create or replace function close_call(
    p_organisation uuid, p_task uuid, p_generation_key text, p_epoch int, p_seq int,
    p_token_ids int4[], p_text text, p_prompt int, p_cached int, p_completion int,
    p_reasoning int, p_source text, p_finish_reason text, p_stop_reason text, p_queue_ms float8,
    p_first_token_ms float8, p_duration_ms float8, p_outcome text, p_error_code text, p_error jsonb, p_decision jsonb,
    p_answer jsonb, p_usage jsonb, p_cache_key text, p_trace text
) returns table (billed_usd numeric, waste_usd numeric, prompt_tokens int, completion_tokens int,
                 cached_tokens int, already_settled boolean)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
#variable_conflict use_column
declare
    own_call text := p_task || ':1';
    h        record;
    c        record;
    said     text := p_answer #>> '{choices,0,text}';
begin
    -- The hold first, as everywhere: two ends of one call do not meet further down.
    select x.state into h from holds x
     where x.organisation_id = p_organisation and x.call_key = own_call for no key update;
    if not found then
        raise exception 'the call was never admitted' using errcode = 'OV001';
    end if;
    if h.state = 'held' then
        if not finish_attempt(p_organisation, p_generation_key, p_epoch, p_seq, p_token_ids, p_text,
                p_prompt, p_cached, p_completion, p_source, p_finish_reason, p_stop_reason,
                p_queue_ms, p_first_token_ms, p_duration_ms, p_outcome, p_error_code, null,
                p_reasoning)
        then
            return;
        end if;
        if p_outcome = 'cancelled' and p_source in ('upstream', 'estimate') then
            -- An engine without token ids: all it wrote went to the caller, and is what they owe.
            update generation_attempts a set journaled_tokens = a.completion_tokens
             where a.organisation_id = p_organisation and a.generation_key = p_generation_key
               and a.epoch = p_epoch;
        end if;
    end if;
    select * into c from settle(p_organisation, p_task, 1, own_call, p_outcome,
        case when p_outcome in ('succeeded', 'cancelled') then p_generation_key end,
        p_decision, null, said, null, p_finish_reason, p_cache_key, '{}', null, null,
        p_outcome, said, p_error, p_trace, p_answer || jsonb_build_object('usage', p_usage));
    update calls x
       set process_id = null, answer = p_answer, usage = p_usage, ended_at = clock_timestamp()
     where x.organisation_id = p_organisation and x.task_id = p_task and x.ended_at is null;
    return query select c.billed_usd, c.waste_usd, c.prompt_tokens, c.completion_tokens,
                        c.cached_tokens, c.already_settled;
end $$;

-- What a key that repeats itself is answered: the call it made the first time, by who answered.
create or replace function earlier_call(
    p_organisation uuid, p_key uuid, p_task uuid, p_idempotency_key text, p_digest text,
    out task_id uuid, out conflict boolean, out status text, out error jsonb, out answer jsonb,
    out usage jsonb, out model text, out created_at timestamptz, out billed_usd numeric
)
    language sql stable set search_path = pg_catalog, public, pg_temp as $$
    select t.task_id, t.request_digest <> p_digest or t.kind <> 'call', t.status, t.error, c.answer,
           c.usage, coalesce(s.model, c.model), t.created_at, t.billed_usd
      from tasks t
      left join calls c on c.organisation_id = t.organisation_id and c.task_id = t.task_id
      left join steps s on s.organisation_id = t.organisation_id and s.task_id = t.task_id
                       and s.step = 1
     where t.organisation_id = p_organisation
       and (t.task_id = p_task
            or (t.key_id = p_key and t.idempotency_key = p_idempotency_key))
     limit 1
$$;

-- Since when the measures of tokens are what they are: a call that was let through before has not
-- used up any of them, or at another rate, so nothing is given back for it.
alter table rate_limits add column caps_since timestamptz not null default '-infinity';

-- What is in use of a bucket after so many seconds, when a call that is so old and was reckoned with
-- as `p_reserved` turns out to be `p_true`. What has leaked of its reservation is not given back a
-- second time. A measure without a cap has no bucket: nothing would ever leak.
create function in_use(
    p_used float8, p_per_minute bigint, p_seconds float8, p_true bigint,
    p_reserved bigint default 0, p_age float8 default 0
) returns float8
    language sql immutable set search_path = pg_catalog, public, pg_temp as $$
    select case when p_per_minute is null then 0
        else greatest(leaked(p_used, p_per_minute, p_seconds)
             + greatest(p_true - p_reserved,
                        - greatest(p_reserved - p_per_minute * greatest(p_age, 0) / 60, 0)), 0) end
$$;

-- Takes a call's place in limits that were checked, and are locked, in this transaction.
create or replace function use_limits(
    p_organisation uuid, p_limits uuid[], p_input bigint, p_output bigint
) returns void
    language sql set search_path = pg_catalog, public, pg_temp as $$
    with moment as materialized (select clock_timestamp() as at)
    update rate_limits x
       set used_requests = in_use(x.used_requests, x.requests_per_minute, s.seconds, 1),
           used_input = in_use(x.used_input, x.input_tokens_per_minute, s.seconds, p_input),
           used_output = in_use(x.used_output, x.output_tokens_per_minute, s.seconds, p_output),
           used_tokens = in_use(x.used_tokens, x.tokens_per_minute, s.seconds,
                                p_input + p_output),
           open_calls = x.open_calls + 1, as_of = s.at
      from (select l.limit_id, m.at, extract(epoch from m.at - l.as_of)::float8 as seconds
              from rate_limits l cross join moment m
             where l.organisation_id = p_organisation and l.limit_id = any (p_limits)) s
     where x.organisation_id = p_organisation and x.limit_id = s.limit_id;
$$;

-- A call is over: its slot is free, and what it was reckoned with becomes what it used.
create or replace function free_limits() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    at timestamptz;
    used     bigint := new.prompt_tokens + new.completion_tokens;
    reserved bigint := new.limit_input + new.limit_output;
begin
    perform from rate_limits x
      where x.organisation_id = new.organisation_id and x.limit_id = any (new.limit_ids)
      order by x.depth, x.model, x.limit_id for no key update;
    at := clock_timestamp();
    update rate_limits x
       set used_requests = in_use(x.used_requests, x.requests_per_minute, s.seconds, 0),
           used_input = in_use(x.used_input, x.input_tokens_per_minute, s.seconds,
                               new.prompt_tokens, new.limit_input, s.age),
           used_output = in_use(x.used_output, x.output_tokens_per_minute, s.seconds,
                                new.completion_tokens, new.limit_output, s.age),
           used_tokens = in_use(x.used_tokens, x.tokens_per_minute, s.seconds, used, reserved,
                                s.age),
           open_calls = greatest(x.open_calls - 1, 0), as_of = at
      from (select l.limit_id, extract(epoch from at - l.as_of)::float8 as seconds,
                   case when new.created_at < l.caps_since then 'infinity'
                        else extract(epoch from at - new.created_at)::float8 end as age
              from rate_limits l
             where l.organisation_id = new.organisation_id
               and l.limit_id = any (new.limit_ids)) s
     where x.organisation_id = new.organisation_id and x.limit_id = s.limit_id;
    return null;
end $$;

-- Sets the limits of an organisation, a team or a key, for a model or for all. What is used stays;
-- a measure that had no cap begins at nothing. Null: there is no such team or key.
create or replace function set_limit(
    p_organisation uuid, p_actor text, p_scope text, p_scope_id uuid, p_model text,
    p_requests bigint, p_input bigint, p_output bigint, p_tokens bigint, p_concurrent bigint
) returns uuid
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    before jsonb;
    made   uuid;
    at     timestamptz;
begin
    if not (case p_scope
        when 'key' then exists (select from api_keys k where k.organisation_id = p_organisation
                                   and k.key_id = p_scope_id)
        when 'team' then exists (select from teams t where t.organisation_id = p_organisation
                                    and t.team_id = p_scope_id)
        else p_scope_id = p_organisation end)
    then
        return null;
    end if;
    select limit_document(x) into before from rate_limits x
     where x.organisation_id = p_organisation and x.scope_id = p_scope_id and x.model = p_model
       for no key update;
    at := clock_timestamp();
    insert into rate_limits as x
        (organisation_id, scope, scope_id, model, requests_per_minute, input_tokens_per_minute,
         output_tokens_per_minute, tokens_per_minute, concurrent_calls)
    values (p_organisation, p_scope, p_scope_id, p_model, p_requests, p_input, p_output, p_tokens,
            p_concurrent)
    on conflict (organisation_id, scope_id, model) do update
       set requests_per_minute = excluded.requests_per_minute,
           input_tokens_per_minute = excluded.input_tokens_per_minute,
           output_tokens_per_minute = excluded.output_tokens_per_minute,
           tokens_per_minute = excluded.tokens_per_minute,
           concurrent_calls = excluded.concurrent_calls,
           used_requests = in_use(x.used_requests, x.requests_per_minute,
                                  extract(epoch from at - x.as_of)::float8, 0),
           used_input = in_use(x.used_input, x.input_tokens_per_minute,
                               extract(epoch from at - x.as_of)::float8, 0),
           used_output = in_use(x.used_output, x.output_tokens_per_minute,
                                extract(epoch from at - x.as_of)::float8, 0),
           used_tokens = in_use(x.used_tokens, x.tokens_per_minute,
                                extract(epoch from at - x.as_of)::float8, 0),
           as_of = at,
           caps_since = case
               when (x.input_tokens_per_minute, x.output_tokens_per_minute, x.tokens_per_minute)
                    is distinct from (excluded.input_tokens_per_minute,
                                      excluded.output_tokens_per_minute,
                                      excluded.tokens_per_minute)
               then at else x.caps_since end
    returning x.limit_id into made;
    perform audit_append(p_actor, 'limit.set', made::text, jsonb_build_object('before', before,
        'after', (select limit_document(x) from rate_limits x
                   where x.organisation_id = p_organisation and x.limit_id = made)));
    return made;
end $$;

-- Whether a limit is for one of these models; a name that ends in * stands for all that begin so.
-- The first name is what was asked for: of a route, every model that may answer counts, since it is
-- not decided yet which of them will.
create or replace function limit_is_for(p_limit text, p_models text[]) returns boolean
    language sql stable set search_path = pg_catalog, public, pg_temp as $$
    select p_limit = '' or exists (
        select from (select unnest(p_models)
                      union all
                     select c ->> 'model' from routes r, jsonb_array_elements(r.candidates) c
                      where r.name = p_models[1]) m (name)
         where m.name = p_limit
            or (right(p_limit, 1) = '*' and starts_with(m.name, left(p_limit, -1))))
$$;

-- May a call be, by every limit above it? Nothing is used by asking. With `p_lock` the answer holds
-- until the transaction ends; limits are locked key, team, organisation, and after the budgets.
-- `p_output`: the longest answer; null: it was not said, so what the team's answers usually have is
-- reckoned with. A call that is part of another one, which is open, has that one's slot: it may not
-- wait for what it keeps taken itself.
create or replace function check_limits(
    p_organisation uuid, p_team uuid, p_key uuid, p_models text[], p_input bigint,
    p_output bigint, p_lock boolean,
    out limit_ids uuid[], out reserved_output bigint, out scope text, out refused jsonb
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    ids     uuid[];
    l       rate_limits;
    m       record;
    id      uuid;
    seconds float8;
    after_s float8;
    worst   float8 := 0;
    least_output bigint;
begin
    limit_ids := '{}';
    select array_agg(x.limit_id order by x.depth, x.model, x.limit_id),
           min(least(x.output_tokens_per_minute,
                     greatest(x.tokens_per_minute - p_input, 0)))
      into ids, least_output
      from rate_limits x
     where x.organisation_id = p_organisation
       and x.scope_id = any (array[p_key, p_team, p_organisation])
       and limit_is_for(x.model, p_models);
    reserved_output := coalesce(p_output, 0);
    if ids is null then
        return;
    end if;
    if p_output is null and least_output is not null then
        -- Nobody knows how long the first answers of a team are: no more than a quarter of what
        -- there is, or one call would keep all others out until it ends.
        reserved_output := least(coalesce(usual_output_tokens(p_organisation, p_team),
                                          least(256, least_output / 4)),
                                 least_output);
    end if;
    foreach id in array ids
    loop
        if p_lock then
            select * into l from rate_limits x
             where x.organisation_id = p_organisation and x.limit_id = id for no key update;
        else
            select * into l from rate_limits x
             where x.organisation_id = p_organisation and x.limit_id = id;
        end if;
        continue when not found;
        limit_ids := limit_ids || id;
        seconds := extract(epoch from clock_timestamp() - l.as_of);
        for m in
            select * from (values
                ('requests', l.requests_per_minute, l.used_requests, 1::bigint),
                ('input_tokens', l.input_tokens_per_minute, l.used_input, p_input),
                ('output_tokens', l.output_tokens_per_minute, l.used_output, reserved_output),
                ('tokens', l.tokens_per_minute, l.used_tokens, p_input + reserved_output)
            ) v (measure, cap, used, cost) where v.cap is not null
        loop
            continue when leaked(m.used, m.cap, seconds) + m.cost <= m.cap;
            -- What is larger than the whole bucket never fits.
            after_s := case when m.cost > m.cap then 'infinity'
                else (leaked(m.used, m.cap, seconds) + m.cost - m.cap) / m.cap * 60 end;
            if after_s > worst then
                worst := after_s;
                scope := l.scope;
                refused := jsonb_build_object('measure', m.measure, 'limit', m.cap,
                    'model', nullif(l.model, ''), 'needed', m.cost, 'never', m.cost > m.cap,
                    'retry_after_s', case when m.cost > m.cap then 60
                                          else greatest(ceil(after_s), 1) end);
            end if;
        end loop;
        if l.open_calls >= l.concurrent_calls and worst < 1
           and coalesce(current_setting('overline.within_call', true), '') <> 'yes'
        then
            worst := 1;
            scope := l.scope;
            refused := jsonb_build_object('measure', 'concurrent_calls',
                'limit', l.concurrent_calls, 'model', nullif(l.model, ''), 'needed', 1,
                'never', false, 'retry_after_s', 1);
        end if;
    end loop;
end $$;
