-- Who holds this token? Definer: the caller has no tenant yet. Says which way it failed, for the
-- logs; the answer on the wire is the same.
create function authenticate(p_key uuid, p_digest bytea)
    returns table (organisation_id uuid, team_id uuid, scopes text[], verdict text)
    language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select k.organisation_id, k.team_id, k.scopes,
           case when k.secret_hash <> p_digest then 'wrong_secret'
                when not k.enabled then 'disabled'
                when k.expires_at <= now() then 'expired'
                else 'ok' end
      from api_keys k where k.key_id = p_key
$$;
revoke execute on function authenticate(uuid, bytea) from public;
