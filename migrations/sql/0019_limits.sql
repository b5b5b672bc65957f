-- Requests, tokens and calls at once: exact over any number of processes, because the counting is in
-- the row that everybody must lock.

-- A limit, and what is used of it. Each measure is a bucket that leaks: what is used goes down at
-- the limit's own rate, so that in any stretch of time no more is let through than one full bucket
-- and what has leaked meanwhile. All that is used is as of `as_of`.
create table rate_limits (
    organisation_id          uuid not null references organisations,
    limit_id                 uuid not null default uuidv7(),
    scope                    text not null check (scope in ('key', 'team', 'organisation')),
    scope_id                 uuid not null,
    depth                    smallint not null generated always as (
                                 case scope when 'key' then 1 when 'team' then 2 else 3 end) stored,
    model                    text not null default '',
    requests_per_minute      bigint check (requests_per_minute >= 1),
    input_tokens_per_minute  bigint check (input_tokens_per_minute >= 1),
    output_tokens_per_minute bigint check (output_tokens_per_minute >= 1),
    tokens_per_minute        bigint check (tokens_per_minute >= 1),
    concurrent_calls         bigint check (concurrent_calls >= 1),
    used_requests            float8 not null default 0,
    used_input               float8 not null default 0,
    used_output              float8 not null default 0,
    used_tokens              float8 not null default 0,
    open_calls               bigint not null default 0,
    as_of                    timestamptz not null default clock_timestamp(),
    created_at               timestamptz not null default now(),
    primary key (organisation_id, limit_id),
    unique (organisation_id, scope_id, model)
) with (fillfactor = 50);

alter table rate_limits enable row level security;
alter table rate_limits force row level security;
create policy tenant on rate_limits
    using      (organisation_id = current_setting('overline.organisation_id')::uuid)
    with check (organisation_id = current_setting('overline.organisation_id')::uuid);
grant select, insert, update, delete on rate_limits to overline_app;
grant select on rate_limits to overline_reader;

-- The place that a call has in its limits is its hold's: who frees the one frees the other, whoever
-- ends the call and however its process died.
alter table holds
    add column limit_ids    uuid[] not null default '{}',
    add column limit_input  bigint not null default 0,
    add column limit_output bigint not null default 0;

-- What is left in use of a bucket after so many seconds.
create function leaked(p_used float8, p_per_minute bigint, p_seconds float8) returns float8
    language sql immutable set search_path = pg_catalog, public, pg_temp as $$
    select greatest(p_used - coalesce(p_per_minute, 0) * greatest(p_seconds, 0) / 60, 0)
$$;

-- Whether a limit is for a model; a name that ends in * stands for all that begin so.
create function limit_is_for(p_limit text, p_models text[]) returns boolean
    language sql immutable set search_path = pg_catalog, public, pg_temp as $$
    select p_limit = '' or p_limit = any (p_models)
        or (right(p_limit, 1) = '*' and exists (
            select from unnest(p_models) m where starts_with(m, left(p_limit, -1))))
$$;

-- What a caller is told: the tightest of its limits, for requests and for tokens. Null: none.
create function limits_now(p_organisation uuid, p_team uuid, p_key uuid, p_models text[])
    returns jsonb
    language sql volatile set search_path = pg_catalog, public, pg_temp as $$
    with measures as (
        select v.of, v.cap, leaked(v.used, v.cap, v.seconds) as used
          from (select x.*, extract(epoch from clock_timestamp() - x.as_of)::float8 as seconds
                  from rate_limits x
                 where x.organisation_id = p_organisation
                   and x.scope_id = any (array[p_key, p_team, p_organisation])
                   and limit_is_for(x.model, p_models)) l
         cross join lateral (values
            ('requests', l.requests_per_minute, l.used_requests, l.seconds),
            ('tokens', l.input_tokens_per_minute, l.used_input, l.seconds),
            ('tokens', l.output_tokens_per_minute, l.used_output, l.seconds),
            ('tokens', l.tokens_per_minute, l.used_tokens, l.seconds)) v (of, cap, used, seconds)
         where v.cap is not null
    ), tightest as (
        select distinct on (m.of) m.of, m.cap, m.used from measures m
         order by m.of, m.cap - m.used, m.cap
    )
    select jsonb_object_agg(t.of, jsonb_build_object(
               'limit', t.cap,
               'remaining', greatest(floor(t.cap - t.used)::bigint, 0),
               'reset_s', round((t.used / t.cap * 60)::numeric, 3)))
      from tightest t
$$;

-- May a call be, by every limit above it? Nothing is used by asking. With `p_lock` the answer holds
-- until the transaction ends; limits are locked key, team, organisation, and after the budgets.
-- `p_output`: the longest answer; null: it was not said, so what the team's answers usually have is
-- reckoned with.
create function check_limits(
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
        reserved_output := least(coalesce(usual_output_tokens(p_organisation, p_team), 256),
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
        if l.open_calls >= l.concurrent_calls and worst < 1 then
            worst := 1;
            scope := l.scope;
            refused := jsonb_build_object('measure', 'concurrent_calls',
                'limit', l.concurrent_calls, 'model', nullif(l.model, ''), 'needed', 1,
                'never', false, 'retry_after_s', 1);
        end if;
    end loop;
end $$;

-- Takes a call's place in limits that were checked, and are locked, in this transaction.
create function use_limits(p_organisation uuid, p_limits uuid[], p_input bigint, p_output bigint)
    returns void
    language sql set search_path = pg_catalog, public, pg_temp as $$
    with moment as materialized (select clock_timestamp() as at)
    update rate_limits x
       set used_requests = leaked(x.used_requests, x.requests_per_minute, s.seconds) + 1,
           used_input = leaked(x.used_input, x.input_tokens_per_minute, s.seconds) + p_input,
           used_output = leaked(x.used_output, x.output_tokens_per_minute, s.seconds) + p_output,
           used_tokens = leaked(x.used_tokens, x.tokens_per_minute, s.seconds)
                         + p_input + p_output,
           open_calls = x.open_calls + 1, as_of = s.at
      from (select l.limit_id, m.at, extract(epoch from m.at - l.as_of)::float8 as seconds
              from rate_limits l cross join moment m
             where l.organisation_id = p_organisation and l.limit_id = any (p_limits)) s
     where x.organisation_id = p_organisation and x.limit_id = s.limit_id;
$$;

-- A call is over: its slot is free, and what it was reckoned with becomes what it used.
create function free_limits() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    at timestamptz;
    more_input  bigint := new.prompt_tokens - new.limit_input;
    more_output bigint := new.completion_tokens - new.limit_output;
begin
    perform from rate_limits x
      where x.organisation_id = new.organisation_id and x.limit_id = any (new.limit_ids)
      order by x.depth, x.model, x.limit_id for no key update;
    at := clock_timestamp();
    update rate_limits x
       set used_requests = leaked(x.used_requests, x.requests_per_minute,
                                  extract(epoch from at - x.as_of)),
           used_input = greatest(leaked(x.used_input, x.input_tokens_per_minute,
                                        extract(epoch from at - x.as_of)) + more_input, 0),
           used_output = greatest(leaked(x.used_output, x.output_tokens_per_minute,
                                         extract(epoch from at - x.as_of)) + more_output, 0),
           used_tokens = greatest(leaked(x.used_tokens, x.tokens_per_minute,
                                         extract(epoch from at - x.as_of))
                                  + more_input + more_output, 0),
           open_calls = greatest(x.open_calls - 1, 0), as_of = at
     where x.organisation_id = new.organisation_id and x.limit_id = any (new.limit_ids);
    return null;
end $$;
create trigger limits after update of state on holds for each row
    when (new.state = 'settled' and old.state = 'held' and new.limit_ids <> '{}')
    execute function free_limits();

-- What the audit log says of a limit.
create function limit_document(l rate_limits) returns jsonb
    language sql immutable set search_path = pg_catalog, public, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object('scope', l.scope, 'scope_id', l.scope_id,
        'model', nullif(l.model, ''), 'requests_per_minute', l.requests_per_minute,
        'input_tokens_per_minute', l.input_tokens_per_minute,
        'output_tokens_per_minute', l.output_tokens_per_minute,
        'tokens_per_minute', l.tokens_per_minute, 'concurrent_calls', l.concurrent_calls))
$$;

-- Sets the limits of an organisation, a team or a key, for a model or for all. What is used stays.
-- Null: there is no such team or key.
create function set_limit(
    p_organisation uuid, p_actor text, p_scope text, p_scope_id uuid, p_model text,
    p_requests bigint, p_input bigint, p_output bigint, p_tokens bigint, p_concurrent bigint
) returns uuid
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    before jsonb;
    made   uuid;
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
           concurrent_calls = excluded.concurrent_calls
    returning x.limit_id into made;
    perform audit_append(p_actor, 'limit.set', made::text, jsonb_build_object('before', before,
        'after', (select limit_document(x) from rate_limits x
                   where x.organisation_id = p_organisation and x.limit_id = made)));
    return made;
end $$;

create function remove_limit(p_organisation uuid, p_actor text, p_limit uuid) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    gone jsonb;
begin
    delete from rate_limits x
     where x.organisation_id = p_organisation and x.limit_id = p_limit
    returning limit_document(x) into gone;
    if gone is null then
        return false;
    end if;
    perform audit_append(p_actor, 'limit.removed', p_limit::text,
                         jsonb_build_object('before', gone, 'after', null));
    return true;
end $$;
