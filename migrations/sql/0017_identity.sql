-- Keys that are rotated, restricted and last used; roles; audit of administration.

-- A list that is null restricts nothing. The secret before the last rotation goes on being good
-- until `previous_until`. The constraints need no look through the keys there are: none has one yet.
alter table api_keys
    add column service_account boolean not null default false,
    add column models          text[],
    add column routes          text[],
    add column endpoints       text[],
    add column addresses       cidr[],
    add column tools           text[],
    add column previous_hash   bytea,
    add column previous_until  timestamptz,
    add column rotated_at      timestamptz,
    add column last_used_at    timestamptz,
    add constraint previous_hash_size check (octet_length(previous_hash) = 32) not valid,
    add constraint previous_has_an_end
        check ((previous_hash is null) = (previous_until is null)) not valid;
grant update (name) on teams to overline_app;
grant select (service_account, models, routes, endpoints, addresses, tools, rotated_at,
    last_used_at) on api_keys to overline_reader;

-- Whether one of an endpoint's allowed prefixes covers it, whole segments at a time.
create function endpoint_allowed(p_endpoints text[], p_endpoint text) returns boolean
    language sql immutable set search_path = pg_catalog, pg_temp as $$
    select coalesce(bool_or(p_endpoint = e or starts_with(p_endpoint, rtrim(e, '/') || '/')), false)
      from unnest(p_endpoints) e
$$;

-- Whether a name is one of those listed; one that ends with * stands for all that begin so.
create function name_listed(p_names text[], p_name text) returns boolean
    language sql immutable set search_path = pg_catalog, pg_temp as $$
    select coalesce(bool_or(p_name = n
                            or (right(n, 1) = '*' and starts_with(p_name, left(n, -1)))), false)
      from unnest(p_names) n
$$;

-- Who holds this token? Definer: the caller has no tenant yet. Says which way it failed, for the
-- logs; except for `address` and `endpoint`, the answer on the wire is the same. Where a request
-- comes from and goes to is in `overline.caller`, bound by the same statement: a key that is
-- restricted in this is refused where it is not said.
-- squawk-ignore ban-drop-function
drop function authenticate(uuid, bytea);
create function authenticate(p_key uuid, p_digest bytea)
    returns table (organisation_id uuid, team_id uuid, scopes text[], verdict text)
    language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select k.organisation_id, k.team_id, k.scopes,
           case when k.secret_hash <> p_digest
                 and (k.previous_hash is distinct from p_digest or k.previous_until <= now())
                then 'wrong_secret'
                when not k.enabled then 'disabled'
                when k.expires_at <= now() then 'expired'
                when k.addresses is not null and not coalesce(
                        nullif(split_part(c.said, ' ', 1), '')::inet <<= any (k.addresses), false)
                then 'address'
                when k.endpoints is not null
                 and not endpoint_allowed(k.endpoints, split_part(c.said, ' ', 2))
                then 'endpoint'
                else 'ok' end
      from api_keys k,
           (select coalesce(current_setting('overline.caller', true), '') as said) c
     where k.key_id = p_key
$$;
revoke execute on function authenticate(uuid, bytea) from public;
grant execute on function authenticate(uuid, bytea) to overline_app;

-- What a key may not use of what a task asks, or null: `model`, `route` or `tool`. A key with a
-- list of models or of routes may name what is listed, and nothing else.
create function key_restriction(
    p_organisation uuid, p_key uuid, p_kind text, p_route text, p_input jsonb
) returns text
    language plpgsql stable set search_path = pg_catalog, public, pg_temp as $$
declare
    k     record;
    asked jsonb := case when p_kind = 'map' then p_input -> 'task' else p_input end;
    model text := asked ->> 'model';
begin
    select a.models, a.routes, a.tools into k from api_keys a
     where a.organisation_id = p_organisation and a.key_id = p_key;
    if k.models is not null or k.routes is not null then
        if p_kind = 'call' then
            -- One field names either.
            if not name_listed(k.models, model) and not name_listed(k.routes, model) then
                return 'model';
            end if;
        elsif model is not null then
            if not name_listed(k.models, model) then
                return 'model';
            end if;
        elsif not name_listed(k.routes, p_route) then
            return 'route';
        end if;
    end if;
    -- The functions of a call are its client's: nothing here runs them.
    if k.tools is not null and p_kind <> 'call' and exists (
        select from jsonb_array_elements(coalesce(asked -> 'tools', '[]')) t
         where not name_listed(k.tools, t ->> 'name'))
    then
        return 'tool';
    end if;
    return null;
end $$;

-- Every door ends here: tasks, forks, maps and their items, turns of sessions, schedules, children
-- and calls are all filed in this table.
create function refuse_restricted() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    what text := key_restriction(new.organisation_id, new.key_id, new.kind, new.route, new.input);
begin
    if what is not null then
        raise exception 'This key may not use this %.', what using errcode = 'OV010';
    end if;
    return new;
end $$;
create trigger key_restrictions before insert on tasks
    for each row execute function refuse_restricted();

-- Keys that were used a moment ago. Definer: they are several tenants'.
create function touch_keys(p_keys uuid[]) returns void
    language sql security definer set search_path = pg_catalog, public, pg_temp as $$
    update api_keys k set last_used_at = now()
     where k.key_id = any (p_keys) and k.enabled
       and (k.last_used_at is null or k.last_used_at < now() - interval '30 seconds')
$$;
revoke execute on function touch_keys(uuid[]) from public;
grant execute on function touch_keys(uuid[]) to overline_app;
grant update (last_used_at) on api_keys to overline_definer;
grant create on schema public to overline_definer;
alter function authenticate(uuid, bytea) owner to overline_definer;
alter function touch_keys(uuid[]) owner to overline_definer;
revoke create on schema public from overline_definer;

