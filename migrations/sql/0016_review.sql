-- What reviews and cases found.

-- A decision is noted with its row and told to the workflow afterwards. What was not told, because a
-- process died in between or Temporal was away, another process tells; the workflow itself looks
-- again only after an hour, when it has waited for long. What was decided before this revision was
-- told, or is looked for.
alter table approvals add column told boolean not null default true;
alter table approvals alter column told set default false;
-- Of decisions only, of which there are few: writers wait once, and not for long.
-- squawk-ignore require-concurrent-index-creation
create index approvals_untold on approvals (decided_at) where decision is not null and not told;
grant select on approvals to overline_definer;

-- Decisions that nobody has confirmed as told, of every organisation.
create function untold_decisions(p_older_than interval, p_limit int)
    returns table (organisation_id uuid, task_id uuid, call_id text)
    language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select a.organisation_id, a.task_id, a.call_id
      from approvals a
      join tasks t on t.organisation_id = a.organisation_id and t.task_id = a.task_id
     where a.decision is not null and not a.told and a.decided_at < now() - p_older_than
       and t.finished_at is null
     order by a.decided_at limit p_limit
$$;
revoke execute on function untold_decisions(interval, int) from public;
grant execute on function untold_decisions(interval, int) to overline_app;
grant create on schema public to overline_definer;
alter function untold_decisions(interval, int) owner to overline_definer;
revoke create on schema public from overline_definer;
