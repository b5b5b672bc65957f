-- Agents: what a task may name instead of saying it. A version never changes and never goes; an
-- archived agent can be named by no new task.

create table agents (
    organisation_id uuid not null,
    name            text not null check (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$'),
    version         int not null check (version >= 1),
    spec            jsonb not null,
    digest          text not null,
    created_at      timestamptz not null default now(),
    created_by      uuid not null,
    archived_at     timestamptz,
    primary key (organisation_id, name, version),
    foreign key (organisation_id, created_by) references api_keys
);
alter table agents enable row level security;
alter table agents force row level security;
create policy tenant on agents
    using      (organisation_id = current_setting('overline.organisation_id')::uuid)
    with check (organisation_id = current_setting('overline.organisation_id')::uuid);

create function only_archive() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if to_jsonb(new) - 'archived_at' <> to_jsonb(old) - 'archived_at' then
        raise exception 'a version of an agent never changes'
            using errcode = 'insufficient_privilege';
    end if;
    return new;
end $$;
create trigger immutable before update on agents
    for each row execute function only_archive();
create trigger kept before delete or truncate on agents
    for each statement execute function refuse_change();

grant select, insert, update (archived_at) on agents to overline_app;
grant select on agents to overline_reader;

-- The next version of an agent, or the newest one if that says the same. One at a time per name.
create function apply_agent(
    p_organisation uuid, p_name text, p_spec jsonb, p_digest text, p_key uuid,
    out version int, out created boolean
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    latest record;
begin
    perform pg_advisory_xact_lock(hashtextextended(p_organisation || '/' || p_name, 0));
    select a.version, a.digest into latest from agents a
     where a.organisation_id = p_organisation and a.name = p_name
     order by a.version desc limit 1;
    created := latest.digest is distinct from p_digest;
    version := coalesce(latest.version, 0) + created::int;
    if created then
        insert into agents (organisation_id, name, version, spec, digest, created_by)
        values (p_organisation, p_name, apply_agent.version, p_spec, p_digest, p_key);
    end if;
    update agents a set archived_at = null
     where a.organisation_id = p_organisation and a.name = p_name and a.archived_at is not null;
end $$;

-- Which agent a task is one of: taken from its request, whichever way the task is filed.
alter table tasks add column agent_name text;
alter table tasks add column agent_version int;

create function note_agent() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    new.agent_name := nullif(split_part(new.input ->> 'agent', '@', 1), '');
    new.agent_version := nullif(split_part(new.input ->> 'agent', '@', 2), '')::int;
    return new;
end $$;
create trigger agent before insert on tasks for each row execute function note_agent();

create view spend_by_agent with (security_invoker = true) as
    select c.organisation_id, c.organisation, t.agent_name as agent, t.agent_version as version,
           count(*) as attempts, count(distinct c.call_key) as calls,
           count(distinct c.task_id) as tasks,
           sum(c.uncached_input_tokens) as uncached_input_tokens,
           sum(c.cached_input_tokens) as cached_input_tokens,
           sum(c.output_tokens) as output_tokens, sum(c.billed_usd) as billed_usd,
           sum(c.waste_usd) as waste_usd, sum(c.saved_usd) as saved_usd
      from spend_lines c
      join tasks t on t.organisation_id = c.organisation_id and t.task_id = c.task_id
     group by c.organisation_id, c.organisation, t.agent_name, t.agent_version;
grant select on spend_by_agent to overline_app, overline_reader;
