-- Safety policies: what a team's texts are screened by, what was decided, and the originals of what
-- was taken out of them.

-- Versions, append-only and numbered within the organisation, so that a number alone says which
-- document. Without a team it is the organisation's, which a team's own takes the place of. A null
-- document takes the scope's policy away.
create table safety_policies (
    organisation_id uuid not null references organisations,
    version         int not null check (version >= 1),
    team_id         uuid,
    document        jsonb,
    digest          bytea,
    created_at      timestamptz not null default now(),
    created_by      text not null,
    primary key (organisation_id, version),
    foreign key (organisation_id, team_id) references teams,
    check ((document is null) = (digest is null))
);
create index safety_policies_by_scope on safety_policies (organisation_id, team_id, version);
create trigger append_only before update or delete or truncate on safety_policies
    for each statement execute function refuse_change();

-- One row for each thing that was screened and in which something was found: rules, spans and
-- labels, never the content. `what` tells apart what is screened in one step at one place. What was
-- refused has no task: its id is the one that the task would have had.
create table safety_decisions (
    organisation_id uuid not null,
    task_id         uuid not null,
    step            int not null,
    place           text not null check (place in ('input', 'passage', 'tool_result', 'output')),
    what            text not null default '',
    decided_at      timestamptz not null default clock_timestamp(),
    policy_version  int not null,
    mode            text not null check (mode in ('enforce', 'dry_run')),
    outcome         text not null
                    check (outcome in ('allow', 'flag', 'redact', 'block', 'require_approval')),
    findings        jsonb not null,
    primary key (organisation_id, task_id, step, place, what),
    foreign key (organisation_id, policy_version) references safety_policies
);
create index safety_decisions_by_time on safety_decisions (organisation_id, decided_at);
create trigger append_only before update or delete or truncate on safety_decisions
    for each statement execute function refuse_change();

-- The originals of the redactions of a task, or of a session, whose id it is then: sealed with a key
-- that no database holds. `version` counts the changes, so that of two writers none undoes the
-- other's.
create table redactions (
    organisation_id uuid not null,
    task_id         uuid not null,
    version         int not null default 1,
    sealed          bytea not null,
    key_id          text not null,
    primary key (organisation_id, task_id)
);
-- Ciphertext: nothing to compress.
alter table redactions alter column sealed set storage external;

do $$
declare name text;
begin
    foreach name in array array['safety_policies', 'safety_decisions', 'redactions']
    loop
        execute format('alter table %I enable row level security', name);
        execute format('alter table %I force row level security', name);
        execute format($policy$
            create policy tenant on %I
                using      (organisation_id = current_setting('overline.organisation_id')::uuid)
                with check (organisation_id = current_setting('overline.organisation_id')::uuid)
            $policy$, name);
    end loop;
end $$;
grant select, insert on safety_policies, safety_decisions to overline_app;
grant select, insert, update on redactions to overline_app;
grant select on safety_policies, safety_decisions, redactions to overline_reader;

-- What each rule found, and where.
create view safety_by_rule with (security_invoker = true) as
    select d.organisation_id, f.found ->> 'rule' as rule, f.found ->> 'kind' as kind,
           f.found ->> 'action' as action, d.place, d.mode, count(*) as findings,
           count(distinct d.task_id) as tasks, min(d.decided_at) as first_at,
           max(d.decided_at) as last_at
      from safety_decisions d cross join lateral jsonb_array_elements(d.findings) f (found)
     group by 1, 2, 3, 4, 5, 6;
grant select on safety_by_rule to overline_app, overline_reader;

-- The version that holds for a team now; 0: none. Every call asks, and most have none at all.
create function policy_in_force(p_organisation uuid, p_team uuid) returns int
    language plpgsql stable set search_path = pg_catalog, public, pg_temp as $$
declare
    p record;
begin
    if not exists (select from safety_policies x where x.organisation_id = p_organisation) then
        return 0;
    end if;
    select x.version, x.document is null as gone into p from safety_policies x
     where x.organisation_id = p_organisation and x.team_id = p_team
     order by x.version desc limit 1;
    if not found or p.gone then
        select x.version, x.document is null as gone into p from safety_policies x
         where x.organisation_id = p_organisation and x.team_id is null
         order by x.version desc limit 1;
    end if;
    return case when p.gone then 0 else coalesce(p.version, 0) end;
end $$;

-- Sets or, with a null document, takes away a scope's policy. Returns the version that says so now;
-- an equal document makes none. Null: there was nothing to take away.
create function set_policy(
    p_organisation uuid, p_actor text, p_team uuid, p_document jsonb, p_digest bytea
) returns int
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    was  record;
    made int;
begin
    if p_team is not null and not exists (
        select from teams t where t.organisation_id = p_organisation and t.team_id = p_team)
    then
        raise exception 'no such team' using errcode = 'OV003';
    end if;
    perform pg_advisory_xact_lock(hashtextextended('safety_policies ' || p_organisation, 0));
    select p.version, p.digest into was from safety_policies p
     where p.organisation_id = p_organisation and p.team_id is not distinct from p_team
     order by p.version desc limit 1;
    if p_digest is not distinct from was.digest then
        return case when p_digest is not null then was.version end;
    end if;
    select coalesce(max(p.version), 0) + 1 into made from safety_policies p
     where p.organisation_id = p_organisation;
    insert into safety_policies (organisation_id, version, team_id, document, digest, created_by)
    values (p_organisation, made, p_team, p_document, p_digest, p_actor);
    perform audit_append(p_actor, case when p_digest is null then 'policy.unset' else 'policy.set' end,
        coalesce(p_team, p_organisation)::text, jsonb_build_object(
            'scope', case when p_team is null then 'organisation' else 'team' end,
            'version', made, 'digest', encode(p_digest, 'hex'),
            'before', jsonb_build_object('version', was.version,
                                         'digest', encode(was.digest, 'hex'))));
    return made;
end $$;

-- Whose a key is, and which policy holds for it. No row: the token is nobody's.
create function policy_of_key(
    p_key uuid, p_digest bytea
) returns table (organisation_id uuid, team_id uuid, version int)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
#variable_conflict use_column
declare
    k record;
begin
    select * into k from authenticate(p_key, p_digest);
    if not found or k.verdict = 'wrong_secret' then
        return;
    end if;
    perform set_config('overline.organisation_id', k.organisation_id::text, true);
    return query select k.organisation_id, k.team_id,
                        policy_in_force(k.organisation_id, k.team_id);
end $$;

-- Whoever files a task says, in `overline.policy`, by which version its texts were screened. If
-- another one holds now, nothing is written. A call that says nothing was not screened. BEFORE, so
-- that no text reaches a page of the table that was not screened by what holds.
create function refuse_unscreened() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if policy_in_force(new.organisation_id, new.team_id)
        <> coalesce(nullif(current_setting('overline.policy', true), ''), '0')::int
    then
        raise exception 'another safety policy holds by now' using errcode = 'OV011';
    end if;
    return new;
end $$;
create trigger screened before insert on tasks for each row
    when (new.kind = 'call' or current_setting('overline.policy', true) <> '')
    execute function refuse_unscreened();

-- Files decisions: [{task_id, step, place, what, policy_version, mode, outcome, findings, actor}].
-- One that is on file stays as it is. What was done about something is in the audit log as well.
create function note_decisions(p_organisation uuid, p_decisions jsonb) returns int
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    d     record;
    noted int := 0;
begin
    for d in
        select * from jsonb_to_recordset(p_decisions) x (
            task_id uuid, step int, place text, what text, policy_version int, mode text,
            outcome text, findings jsonb, actor text)
    loop
        insert into safety_decisions (organisation_id, task_id, step, place, what, policy_version,
                                      mode, outcome, findings)
        values (p_organisation, d.task_id, d.step, d.place, coalesce(d.what, ''),
                d.policy_version, d.mode, d.outcome, d.findings)
        on conflict do nothing;
        if found then
            noted := noted + 1;
            if d.outcome <> 'allow' then
                perform audit_append(coalesce(d.actor, 'overline'), 'safety.' || d.outcome,
                    d.task_id::text, jsonb_build_object('step', d.step, 'place', d.place,
                        'policy_version', d.policy_version, 'findings', d.findings));
            end if;
        end if;
    end loop;
    return noted;
end $$;

-- Keeps the originals of a task's redactions if `p_version` is the newest that the writer has seen
-- (0: none); false: somebody else's is newer.
create function keep_redactions(
    p_organisation uuid, p_task uuid, p_version int, p_sealed bytea, p_key_id text
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if p_version = 0 then
        insert into redactions (organisation_id, task_id, sealed, key_id)
        values (p_organisation, p_task, p_sealed, p_key_id) on conflict do nothing;
    else
        update redactions r set version = r.version + 1, sealed = p_sealed, key_id = p_key_id
         where r.organisation_id = p_organisation and r.task_id = p_task
           and r.version = p_version;
    end if;
    return found;
end $$;

-- What screening has to say about a call that was opened: in the statement that opens it, so that
-- it is filed with it or not at all. What repeats an earlier call is that one's.
create function file_screening(
    p_organisation uuid, p_task uuid, p_verdict text, p_decisions jsonb, p_sealed bytea,
    p_key_id text
) returns void
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if p_verdict not in ('go', 'cached') then
        return;
    end if;
    if p_sealed is not null then
        perform keep_redactions(p_organisation, p_task, 0, p_sealed, p_key_id);
    end if;
    if p_decisions is not null then
        perform note_decisions(p_organisation, p_decisions);
    end if;
end $$;

-- A call that its policy does not let begin: filed among the refusals, with what was decided.
-- Verdicts: unauthenticated, forbidden, changed (another policy holds by now), refused.
create function refuse_screened_call(
    p_key uuid, p_digest bytea, p_task uuid, p_policy int, p_user text, p_tags jsonb,
    p_endpoint text, p_model text, p_code text, p_rule text, p_trace text, p_decisions jsonb,
    out verdict text, out reason text
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    k record;
begin
    select * into k from authenticate(p_key, p_digest);
    if not found or k.verdict <> 'ok' then
        verdict := 'unauthenticated';
        reason := coalesce(k.verdict, 'unknown');
        return;
    end if;
    if not 'tasks' = any (k.scopes) then
        verdict := 'forbidden';
        return;
    end if;
    perform set_config('overline.organisation_id', k.organisation_id::text, true);
    if policy_in_force(k.organisation_id, k.team_id) <> p_policy then
        verdict := 'changed';
        return;
    end if;
    verdict := 'refused';
    insert into refused_calls (organisation_id, refusal_id, team_id, key_id, user_id, tags,
                               endpoint, model, code, scope, trace_id)
    values (k.organisation_id, p_task, k.team_id, p_key, p_user, p_tags, p_endpoint, p_model,
            p_code, 'policy:' || p_rule, p_trace);
    perform note_decisions(k.organisation_id, p_decisions);
end $$;

-- The originals go when the rest of a task's content goes.
create function drop_redactions() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    delete from redactions r
     where r.organisation_id = new.organisation_id and r.task_id = new.task_id;
    return null;
end $$;
create trigger redactions_go after update of content_removed_at on tasks for each row
    when (new.content_removed_at is not null) execute function drop_redactions();
-- It runs where housekeeping does.
grant select, delete on redactions to overline_definer;
