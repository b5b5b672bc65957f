-- Tools: registered ones, pinned by digest, and people's decisions about calls.

-- One definition of a tool. What a task was told of stays readable after it was replaced or
-- removed; only the current ones can be called.
create table tools (
    organisation_id uuid not null references organisations,
    name            text not null,
    digest          text not null,
    source          text not null,
    kind            text not null check (kind in ('openapi', 'mcp')),
    description     text not null,
    input_schema    jsonb not null,
    target          jsonb not null,
    approval        jsonb not null,
    timeout_seconds int not null check (timeout_seconds >= 1),
    max_attempts    int not null check (max_attempts >= 1),
    created_at      timestamptz not null default now(),
    removed_at      timestamptz,
    primary key (organisation_id, name, digest)
);
create unique index tools_current on tools (organisation_id, name) where removed_at is null;

create table approvals (
    organisation_id   uuid not null,
    task_id           uuid not null,
    call_id           text not null,
    step              int not null check (step >= 1),
    tool              text not null,
    arguments         jsonb not null,
    arguments_digest  text not null,
    requested_at      timestamptz not null default now(),
    decision          text check (decision in ('approve', 'refuse')),
    decided_arguments jsonb,
    reason            text,
    decided_by        uuid,
    decided_at        timestamptz,
    primary key (organisation_id, task_id, call_id),
    foreign key (organisation_id, task_id) references tasks
);

do $$
declare name text;
begin
    foreach name in array array['tools', 'approvals']
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
grant select, insert, update on tools, approvals to overline_app;
grant select on tools, approvals to overline_reader;

-- Asks people about a call, once.
create function request_approval(
    p_organisation uuid, p_task uuid, p_step int, p_call_id text, p_tool text, p_arguments jsonb,
    p_digest text
) returns void
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    insert into approvals (organisation_id, task_id, call_id, step, tool, arguments,
                           arguments_digest)
    values (p_organisation, p_task, p_call_id, p_step, p_tool, p_arguments, p_digest)
    on conflict do nothing;
    if found then
        perform push_event(p_organisation, p_task, p_step, 'approval.requested',
            jsonb_build_object('call_id', p_call_id, 'tool', p_tool,
                               'arguments_sha256', p_digest),
            'approval.requested.' || p_call_id);
    end if;
end $$;

-- Takes a decision: the first one stands, and the same one again is the same answer.
create function decide_approval(
    p_organisation uuid, p_task uuid, p_call_id text, p_decision text, p_arguments jsonb,
    p_reason text, p_key uuid
) returns text
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    a record;
    over boolean;
begin
    -- The task's row first, as everywhere: an end and a decision do not pass each other.
    select t.finished_at is not null into over from tasks t
     where t.organisation_id = p_organisation and t.task_id = p_task for no key update;
    if not found then
        return 'no task';
    end if;
    select x.decision, x.decided_arguments, x.reason, x.step, x.tool into a from approvals x
     where x.organisation_id = p_organisation and x.task_id = p_task and x.call_id = p_call_id
       for no key update;
    if not found then
        return 'no call';
    end if;
    if a.decision is not null then
        return case when a.decision = p_decision
                     and a.decided_arguments is not distinct from p_arguments
                     and a.reason is not distinct from p_reason
                    then 'same' else 'other' end;
    end if;
    if over then
        return 'finished';
    end if;
    update approvals x
       set decision = p_decision, decided_arguments = p_arguments, reason = p_reason,
           decided_by = p_key, decided_at = now()
     where x.organisation_id = p_organisation and x.task_id = p_task and x.call_id = p_call_id;
    perform push_event(p_organisation, p_task, a.step, 'approval.decided',
        jsonb_build_object('call_id', p_call_id, 'tool', a.tool, 'decision', p_decision,
                           'edited', p_arguments is not null),
        'approval.decided.' || p_call_id);
    perform audit_append(p_key::text, 'approval.' || p_decision, p_call_id,
        jsonb_build_object('tool', a.tool, 'edited', p_arguments is not null));
    return 'decided';
end $$;
