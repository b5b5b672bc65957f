-- Messages to a running task, and sessions: conversations whose turns are tasks.

-- An answer that did not end its task, because something was said before it was settled.
alter table steps add column answered boolean not null default false;

-- What was said to a task after it was filed, in the order of the task's lock. A message is queued
-- until the loop takes it in before a step: that and no other moment is its place.
create table task_messages (
    organisation_id uuid not null,
    task_id         uuid not null,
    number          int not null check (number >= 1),
    key_id          uuid not null,
    content         text not null,
    idempotency_key text,
    sent            boolean not null default false,
    at_step         int check (at_step >= 1),
    created_at      timestamptz not null default clock_timestamp(),
    taken_at        timestamptz,
    primary key (organisation_id, task_id, number),
    unique (organisation_id, task_id, key_id, idempotency_key),
    foreign key (organisation_id, task_id) references tasks,
    check ((at_step is null) = (taken_at is null))
);
create index task_messages_unsent on task_messages (created_at) where at_step is null and not sent;

-- A conversation: what every turn of it is asked with, names in it looked up once.
create table sessions (
    organisation_id  uuid not null,
    session_id       uuid not null,
    team_id          uuid not null,
    key_id           uuid not null,
    idempotency_key  text,
    request          jsonb not null,
    resolved         jsonb not null,
    first_max_tokens int not null check (first_max_tokens >= 1),
    messages         int not null default 0,
    created_at       timestamptz not null default now(),
    closed_at        timestamptz,
    primary key (organisation_id, session_id),
    unique (organisation_id, key_id, idempotency_key),
    foreign key (organisation_id, team_id) references teams,
    foreign key (organisation_id, key_id) references api_keys
) with (fillfactor = 70);

-- One message of a session, and the task that is its turn, or why there is none. `digest` and
-- `chars` are those of everything that was said before it.
create table session_messages (
    organisation_id uuid not null,
    session_id      uuid not null,
    number          int not null check (number >= 1),
    team_id         uuid not null,
    key_id          uuid not null,
    content         text not null,
    idempotency_key text,
    task_id         uuid,
    digest          text,
    chars           bigint,
    code            text,
    detail          text,
    created_at      timestamptz not null default clock_timestamp(),
    sent_at         timestamptz,
    primary key (organisation_id, session_id, number),
    unique (organisation_id, session_id, key_id, idempotency_key),
    foreign key (organisation_id, session_id) references sessions,
    foreign key (organisation_id, team_id) references teams,
    foreign key (organisation_id, key_id) references api_keys,
    foreign key (organisation_id, task_id) references tasks,
    check (task_id is null or code is null),
    check ((task_id is null) = (digest is null) and (digest is null) = (chars is null))
);
create index session_messages_queued on session_messages (organisation_id, session_id, number)
    where task_id is null and code is null;
create index session_messages_by_task on session_messages (organisation_id, task_id);

-- The conversation a task's own begins with: what was said in the session before this number. A
-- fork of a turn has it too, and is no turn.
-- The owner is fenced too, but not while what is there is checked.
alter table tasks no force row level security;
alter table tasks add column session_id uuid, add column session_number int;
-- No row has either yet.
alter table tasks add constraint tasks_of_session
    check ((session_id is null) = (session_number is null)) not valid;
alter table tasks add constraint tasks_session
    foreign key (organisation_id, session_id) references sessions not valid;
alter table tasks force row level security;

do $$
declare name text;
begin
    foreach name in array array['task_messages', 'sessions', 'session_messages']
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
grant select, insert, update on task_messages, sessions, session_messages to overline_app;
grant select on task_messages, sessions, session_messages to overline_reader;
grant select on task_messages, sessions, session_messages to overline_definer;

-- Queues a message to a task that runs, once, with its event.
create function send_message(
    p_organisation uuid, p_key uuid, p_task uuid, p_content text, p_idempotency_key text,
    out number int, out created boolean, out conflict boolean, out ended boolean
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    t     record;
    first record;
begin
    created := false;
    conflict := false;
    ended := false;
    select s.status, s.finished_at into t from tasks s
     where s.organisation_id = p_organisation and s.task_id = p_task for no key update;
    if not found or t.status = 'discarded' then
        raise exception 'no such task' using errcode = 'OV003';
    end if;
    select m.number as id, m.content <> p_content as other into first from task_messages m
     where m.organisation_id = p_organisation and m.task_id = p_task and m.key_id = p_key
       and m.idempotency_key = p_idempotency_key;
    if found then
        number := first.id;
        conflict := first.other;
        return;
    end if;
    ended := t.finished_at is not null;
    if ended then
        return;
    end if;
    select coalesce(max(m.number), 0) + 1 into number from task_messages m
     where m.organisation_id = p_organisation and m.task_id = p_task;
    insert into task_messages (organisation_id, task_id, number, key_id, content, idempotency_key)
    values (p_organisation, p_task, number, p_key, p_content, p_idempotency_key);
    created := true;
    perform push_event(p_organisation, p_task, null, 'message.queued',
        jsonb_build_object('number', number), 'message.queued.' || number);
end $$;

-- Takes what is queued into the conversation before a step. Asked again for the same step it gives
-- the same messages, and those that came since.
create function take_messages(p_organisation uuid, p_task uuid, p_step int, p_after int)
    returns table (number int, content text)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    taken int[];
begin
    perform from tasks t
      where t.organisation_id = p_organisation and t.task_id = p_task and t.finished_at is null
        for no key update;
    if not found then
        return;
    end if;
    with moved as (
        update task_messages m set at_step = p_step, taken_at = now()
         where m.organisation_id = p_organisation and m.task_id = p_task and m.at_step is null
        returning m.number as one
    )
    select array_agg(one order by one) into taken from moved;
    if taken is not null then
        perform push_event(p_organisation, p_task, p_step, 'message.taken',
            jsonb_build_object('numbers', taken), 'message.taken.' || taken[1]);
    end if;
    return query
        select m.number, m.content from task_messages m
         where m.organisation_id = p_organisation and m.task_id = p_task and m.at_step = p_step
           and m.number > p_after
         order by m.number;
end $$;

-- Settles a call whose answer is to end its task, unless something was said to the task meanwhile:
-- then the answer is one of the conversation. Who says something after this finds the task ended.
create function settle_answer(
    p_organisation uuid, p_task uuid, p_step int, p_call_key text, p_outcome text, p_winner text,
    p_decision jsonb, p_provenance jsonb, p_text text, p_tool_call jsonb, p_finish_reason text,
    p_cache_key text, p_cache_collections uuid[], p_cache_ttl_s float8, p_cache_hit uuid,
    p_trace text,
    out billed_usd numeric, out waste_usd numeric, out saved_usd numeric, out overage_usd numeric,
    out prompt_tokens int, out completion_tokens int, out cached_tokens int,
    out already_settled boolean, out goes_on boolean
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    said text;
begin
    select s.billed_usd, s.waste_usd, s.saved_usd, s.overage_usd, s.prompt_tokens,
           s.completion_tokens, s.cached_tokens, s.already_settled
      into billed_usd, waste_usd, saved_usd, overage_usd, prompt_tokens, completion_tokens,
           cached_tokens, already_settled
      from settle(p_organisation, p_task, p_step, p_call_key, p_outcome, p_winner, p_decision,
                  p_provenance, p_text, p_tool_call, p_finish_reason, p_cache_key,
                  p_cache_collections, p_cache_ttl_s, p_cache_hit, null, null, null, p_trace) s;
    select x.text, x.answered into said, goes_on from steps x
     where x.organisation_id = p_organisation and x.task_id = p_task and x.step = p_step;
    if already_settled then
        return;
    end if;
    -- The settlement has locked the task's row: whoever says something to it waits for us.
    goes_on := exists (
        select from task_messages m
         where m.organisation_id = p_organisation and m.task_id = p_task and m.at_step is null);
    if goes_on then
        update steps x set answered = true
         where x.organisation_id = p_organisation and x.task_id = p_task and x.step = p_step;
    else
        perform finish_task(p_organisation, p_task, 'succeeded', said, null);
    end if;
end $$;

-- Queued messages that no workflow has heard of, of every organisation.
create function unsent_messages(p_older_than interval, p_limit int)
    returns table (organisation_id uuid, task_id uuid, number int)
    language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select m.organisation_id, m.task_id, max(m.number)
      from task_messages m
      join tasks t on t.organisation_id = m.organisation_id and t.task_id = m.task_id
     where m.at_step is null and not m.sent and m.created_at < now() - p_older_than
       and t.finished_at is null
     group by m.organisation_id, m.task_id
     order by min(m.created_at) limit p_limit
$$;

-- Says something in a session, once. Its turn comes when the turns before it are over.
create function say_in_session(
    p_organisation uuid, p_team uuid, p_key uuid, p_session uuid, p_content text,
    p_idempotency_key text,
    out number int, out task_id uuid, out created boolean, out conflict boolean,
    out closed boolean
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    s     record;
    first record;
begin
    created := false;
    conflict := false;
    closed := false;
    select x.closed_at, x.messages into s from sessions x
     where x.organisation_id = p_organisation and x.session_id = p_session for no key update;
    if not found then
        raise exception 'no such session' using errcode = 'OV003';
    end if;
    select m.number as id, m.task_id as turn, m.content <> p_content as other into first
      from session_messages m
     where m.organisation_id = p_organisation and m.session_id = p_session and m.key_id = p_key
       and m.idempotency_key = p_idempotency_key;
    if found then
        number := first.id;
        task_id := first.turn;
        conflict := first.other;
        return;
    end if;
    closed := s.closed_at is not null;
    if closed then
        return;
    end if;
    number := s.messages + 1;
    update sessions x set messages = number
     where x.organisation_id = p_organisation and x.session_id = p_session;
    insert into session_messages
        (organisation_id, session_id, number, team_id, key_id, content, idempotency_key)
    values (p_organisation, p_session, number, p_team, p_key, p_content, p_idempotency_key);
    created := true;
    perform pg_notify('overline_task', p_session::text);
end $$;

-- Files the task that is a message's turn, or finds it filed.
create function file_turn(
    p_organisation uuid, p_session uuid, p_number int, p_team uuid, p_key uuid, p_task uuid,
    p_idempotency_key text, p_request_digest text, p_input jsonb, p_user text, p_tags jsonb,
    p_route text, p_worst_case numeric, p_max_cost numeric, p_digest text, p_chars bigint,
    out task_id uuid, out created boolean, out conflict boolean,
    out code text, out scope text, out limit_usd numeric, out spent_usd numeric,
    out held_usd numeric
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    perform from session_messages m
      where m.organisation_id = p_organisation and m.session_id = p_session
        and m.number = p_number for no key update;
    if not found then
        raise exception 'no such message' using errcode = 'OV003';
    end if;
    select f.task_id, f.created, f.conflict, f.code, f.scope, f.limit_usd, f.spent_usd, f.held_usd
      into task_id, created, conflict, code, scope, limit_usd, spent_usd, held_usd
      from submit_task(p_organisation, p_team, p_key, p_task, p_idempotency_key, p_request_digest,
                       p_input, p_user, p_tags, p_route, p_worst_case, p_max_cost) f;
    if code is not null or not created then
        return;
    end if;
    update tasks t set session_id = p_session, session_number = p_number
     where t.organisation_id = p_organisation and t.task_id = p_task;
    update session_messages m set task_id = p_task, digest = p_digest, chars = p_chars
     where m.organisation_id = p_organisation and m.session_id = p_session
       and m.number = p_number;
    perform pg_notify('overline_task', p_session::text);
end $$;

-- Notes why a message has no turn, once.
create function refuse_turn(
    p_organisation uuid, p_session uuid, p_number int, p_code text, p_detail text
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    update session_messages m set code = p_code, detail = p_detail
     where m.organisation_id = p_organisation and m.session_id = p_session
       and m.number = p_number and m.task_id is null and m.code is null;
    if not found then
        return false;
    end if;
    perform pg_notify('overline_task', p_session::text);
    return true;
end $$;

-- Ends a session for new messages; those in it still have their turns.
create function close_session(p_organisation uuid, p_session uuid) returns timestamptz
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    since timestamptz;
begin
    update sessions x set closed_at = coalesce(x.closed_at, now())
     where x.organisation_id = p_organisation and x.session_id = p_session
    returning x.closed_at into since;
    if not found then
        raise exception 'no such session' using errcode = 'OV003';
    end if;
    perform pg_notify('overline_task', p_session::text);
    return since;
end $$;

-- Sessions with a message whose turn nobody seems to see to, of every organisation: not told to the
-- workflow, or told a minute ago to one that was ended by hand.
create function unsent_sessions(p_older_than interval, p_limit int)
    returns table (organisation_id uuid, team_id uuid, session_id uuid, number int)
    language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select m.organisation_id, s.team_id, m.session_id, max(m.number)
      from session_messages m
      join sessions s on s.organisation_id = m.organisation_id and s.session_id = m.session_id
     where m.task_id is null and m.code is null
       and (m.sent_at is null and m.created_at < now() - p_older_than
            or m.sent_at < now() - interval '1 minute'
               and not exists (
                   select from session_messages r
                     join tasks t on t.organisation_id = r.organisation_id
                                 and t.task_id = r.task_id
                    where r.organisation_id = m.organisation_id and r.session_id = m.session_id
                      and r.number = m.number - 1 and t.finished_at is null))
     group by m.organisation_id, s.team_id, m.session_id
     order by min(m.created_at) limit p_limit
$$;

revoke execute on function unsent_messages(interval, int), unsent_sessions(interval, int)
    from public;
grant execute on function unsent_messages(interval, int), unsent_sessions(interval, int)
    to overline_app;
grant create on schema public to overline_definer;
alter function unsent_messages(interval, int) owner to overline_definer;
alter function unsent_sessions(interval, int) owner to overline_definer;
revoke create on schema public from overline_definer;

-- Gives a fork what was said to its parent before the step it begins with, and the session the
-- parent began with; in the transaction that files the fork. Nothing when that was filed before.
create function inherit_conversation(p_organisation uuid, p_task uuid, p_message text)
    returns void
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    f record;
begin
    select x.parent_task_id, x.from_step, x.changed into f from task_forks x
     where x.organisation_id = p_organisation and x.task_id = p_task;
    if not found then
        return;
    end if;
    update steps s set answered = true
      from steps p
     where s.organisation_id = p_organisation and s.task_id = p_task
       and p.organisation_id = p_organisation and p.task_id = f.parent_task_id
       and p.step = s.step and p.answered;
    if 'messages' = any (f.changed) then
        -- The whole conversation is another one.
        return;
    end if;
    insert into task_messages (organisation_id, task_id, number, key_id, content, sent, at_step,
                               created_at, taken_at)
    select p_organisation, p_task, m.number, m.key_id,
           case when m.number = max(m.number) over () then coalesce(p_message, m.content)
                else m.content end,
           true, m.at_step, m.created_at, m.taken_at
      from task_messages m
     where m.organisation_id = p_organisation and m.task_id = f.parent_task_id
       and m.at_step <= f.from_step
    on conflict do nothing;
    update tasks t set session_id = p.session_id, session_number = p.session_number
      from tasks p
     where t.organisation_id = p_organisation and t.task_id = p_task
       and p.organisation_id = p_organisation and p.task_id = f.parent_task_id
       and p.session_id is not null;
end $$;
