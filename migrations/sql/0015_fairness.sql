-- Whose turn it is at the engine.

-- Calls of one class wait in one queue. Slots: requests an engine runs at a time, each replica.
alter table deployments
    add column class text not null default '' check (class ~ '^([a-z0-9][a-z0-9._-]{0,63})?$'),
    add column slots int not null default 1 check (slots > 0);

-- How long a team's answers are: of its last 20 ledger rows within the hour, those that made one.
create function usual_output_tokens(p_organisation uuid, p_team uuid) returns int
    language sql stable set search_path = pg_catalog, public, pg_temp as $$
    select round(avg(c.output_tokens) filter (where c.outcome in ('succeeded', 'cancelled')))::int
      from (select m.output_tokens, m.outcome from model_calls m
             where m.organisation_id = p_organisation and m.team_id = p_team
               and m.started_at > now() - interval '1 hour'
             order by m.started_at desc limit 20) c;
$$;
