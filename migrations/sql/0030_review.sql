-- What a review found.

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
