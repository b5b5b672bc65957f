-- Files that callers keep here, and batches: many requests in one file, answered into another.

-- `writing`: what is there is not all of it yet, and nobody can name it.
create table files (
    organisation_id uuid not null,
    file_id         uuid not null,
    team_id         uuid not null,
    key_id          uuid not null,
    filename        text not null,
    purpose         text not null check (purpose in ('batch', 'batch_output')),
    state           text not null default 'writing' check (state in ('writing', 'ready')),
    bytes           bigint not null default 0,
    lines           int not null default 0,
    created_at      timestamptz not null default now(),
    expires_at      timestamptz not null,
    primary key (organisation_id, file_id),
    foreign key (organisation_id, key_id) references api_keys
);
create index files_by_end on files (expires_at);

-- A file in pieces of about a megabyte, each of whole lines: written as they come, read as they go.
create table file_parts (
    organisation_id uuid not null,
    file_id         uuid not null,
    part            int not null,
    data            bytea not null,
    primary key (organisation_id, file_id, part),
    foreign key (organisation_id, file_id) references files
);
-- So that one line is read without the others around it.
alter table file_parts alter column data set storage external;

-- `address`: where the batch was submitted from, because its key may be restricted in that. The
-- counts are those of its end; before, the lines are counted.
create table batches (
    organisation_id   uuid not null,
    batch_id          uuid not null,
    team_id           uuid not null,
    key_id            uuid not null,
    idempotency_key   text,
    request_digest    text not null,
    endpoint          text not null,
    input_file_id     uuid not null,
    completion_window text not null,
    metadata          jsonb not null default '{}',
    on_budget         text not null default 'fail' check (on_budget in ('fail', 'wait')),
    keep_output       interval not null,
    address           text,
    status            text not null default 'validating' check (status in
                        ('validating', 'in_progress', 'finalizing', 'completed', 'failed',
                         'expired', 'cancelling', 'cancelled')),
    -- What it will have ended as, decided once when it begins nothing more.
    outcome           text,
    errors            jsonb,
    total             int not null default 0,
    completed         int not null default 0,
    failed            int not null default 0,
    prompt_tokens     bigint not null default 0,
    cached_tokens     bigint not null default 0,
    completion_tokens bigint not null default 0,
    reasoning_tokens  bigint not null default 0,
    billed_usd        numeric(18, 9) not null default 0,
    output_file_id    uuid,
    error_file_id     uuid,
    created_at        timestamptz not null default now(),
    -- When a workflow was last seen to be started for it; none: nobody has confirmed one.
    started_at        timestamptz,
    in_progress_at    timestamptz,
    finalizing_at     timestamptz,
    cancelling_at     timestamptz,
    expires_at        timestamptz not null,
    ended_at          timestamptz,
    primary key (organisation_id, batch_id),
    foreign key (organisation_id, key_id) references api_keys
) with (fillfactor = 70);
create unique index batches_by_idempotency_key
    on batches (organisation_id, key_id, idempotency_key) where idempotency_key is not null;
create index batches_running on batches (created_at) where ended_at is null;
create index batches_by_input on batches (organisation_id, input_file_id) where ended_at is null;

-- A request of a batch that has not ended: where it stands in the file, who works on it, what came
-- of it. `class`: whose engines it waits for. `tries`: calls made for it that failed; the next one
-- is another call. `strikes`: those that it may have been at fault for itself.
create table batch_lines (
    organisation_id   uuid not null,
    batch_id          uuid not null,
    line              int not null,
    custom_id         text not null,
    class             text not null,
    part              int not null,
    start             int not null,
    size              int not null,
    state             text not null default 'waiting' check (state in
                        ('waiting', 'running', 'answered', 'failed')),
    slot              int,
    tries             int not null default 0,
    strikes           int not null default 0,
    not_before        timestamptz,
    result            bytea,
    prompt_tokens     int not null default 0,
    cached_tokens     int not null default 0,
    completion_tokens int not null default 0,
    reasoning_tokens  int not null default 0,
    billed_usd        numeric(18, 9) not null default 0,
    primary key (organisation_id, batch_id, line),
    foreign key (organisation_id, batch_id) references batches
) with (fillfactor = 70);
create index batch_lines_waiting on batch_lines (organisation_id, batch_id, class, line)
    where state = 'waiting';
create index batch_lines_running on batch_lines (organisation_id, batch_id, slot)
    where state = 'running';

do $$
declare name text;
begin
    foreach name in array array['files', 'file_parts', 'batches', 'batch_lines']
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
grant select, insert, update, delete on files, file_parts, batch_lines to overline_app;
grant select, insert, update on batches to overline_app;
-- Not `result`: in what a line was answered, what a policy took out of its texts is back.
grant select on files, batches to overline_reader;
grant select (organisation_id, batch_id, line, custom_id, class, part, start, size, state, slot,
              tries, strikes, not_before, prompt_tokens, cached_tokens, completion_tokens,
              reasoning_tokens, billed_usd) on batch_lines to overline_reader;
grant select on files, file_parts, batches to overline_definer;
grant delete on files, file_parts to overline_definer;
-- To lock a file before it is removed.
grant update (state) on files to overline_definer;

-- The next line that a slot works on: the one it had begun, or the first that waits. No line and no
-- time: there is nothing left for it, or the batch begins nothing more. No line and a time: that
-- long until one may be tried again.
create function take_batch_line(
    p_organisation uuid, p_batch uuid, p_class text, p_slot int,
    out line int, out custom_id text, out tries int, out strikes int, out body bytea,
    out wait_s float8
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    found_line record;
begin
    select l.line, l.custom_id, l.tries, l.strikes, l.part, l.start, l.size into found_line
      from batch_lines l
     where l.organisation_id = p_organisation and l.batch_id = p_batch and l.slot = p_slot
       and l.state = 'running'
     order by l.line limit 1;
    if not found then
        perform from batches b
          where b.organisation_id = p_organisation and b.batch_id = p_batch
            and b.status = 'in_progress' and b.expires_at > now();
        if not found then
            return;
        end if;
        select l.line, l.custom_id, l.tries, l.strikes, l.part, l.start, l.size into found_line
          from batch_lines l
         where l.organisation_id = p_organisation and l.batch_id = p_batch and l.class = p_class
           and l.state = 'waiting' and (l.not_before is null or l.not_before <= now())
         order by l.line limit 1
           for update skip locked;
        if not found then
            -- One that somebody else is just taking may yet be given back.
            select greatest(0.2, extract(epoch from l.not_before - now())) into wait_s
              from batch_lines l
             where l.organisation_id = p_organisation and l.batch_id = p_batch
               and l.class = p_class and l.state = 'waiting'
             order by l.not_before nulls first limit 1;
            return;
        end if;
        update batch_lines l set state = 'running', slot = p_slot, not_before = null
         where l.organisation_id = p_organisation and l.batch_id = p_batch
           and l.line = found_line.line;
    end if;
    line := found_line.line;
    custom_id := found_line.custom_id;
    tries := found_line.tries;
    strikes := found_line.strikes;
    select substring(p.data from found_line.start + 1 for found_line.size) into body
      from batches b
      join file_parts p on p.organisation_id = b.organisation_id and p.file_id = b.input_file_id
     where b.organisation_id = p_organisation and b.batch_id = p_batch
       and p.part = found_line.part;
end $$;

-- What a batch begins no more: those of its lines that were not tried are told why. Then its files
-- can be written. The outcome is decided here, once.
create function begin_batch_end(
    p_organisation uuid, p_batch uuid, p_error jsonb, p_output uuid, p_errors uuid,
    out outcome text, out output_file_id uuid, out error_file_id uuid
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    b       record;
    why     text;
    code    text;
    waiting boolean;
begin
    select * into b from batches x
     where x.organisation_id = p_organisation and x.batch_id = p_batch for no key update;
    if not found then
        raise exception 'no such batch' using errcode = 'OV003';
    end if;
    if b.ended_at is not null then
        return;
    end if;
    waiting := exists (select from batch_lines l
                        where l.organisation_id = p_organisation and l.batch_id = p_batch
                          and l.state in ('waiting', 'running'));
    outcome := case when b.outcome is not null then b.outcome
                    when p_error is not null then 'failed'
                    when b.status = 'cancelling' then 'cancelled'
                    when waiting or (b.status = 'validating' and b.expires_at <= now())
                    then 'expired'
                    else 'completed' end;
    if waiting then
        code := case outcome when 'cancelled' then 'batch_cancelled' when 'failed' then 'batch_failed'
                             else 'batch_expired' end;
        why := case outcome
            when 'cancelled' then 'This request was not made: the batch was cancelled.'
            when 'failed' then 'This request was not made: the batch failed.'
            else 'This request could not be made before the completion window expired.' end;
        update batch_lines l
           set state = 'failed', slot = null, result = convert_to(json_build_object(
                   'id', 'batch_req_' || replace(p_batch::text, '-', '') || '_' || l.line,
                   'custom_id', l.custom_id, 'response', null,
                   'error', json_build_object('code', code, 'message', why))::text, 'UTF8')
         where l.organisation_id = p_organisation and l.batch_id = p_batch
           and l.state in ('waiting', 'running');
    end if;
    output_file_id := coalesce(b.output_file_id, p_output);
    error_file_id := coalesce(b.error_file_id, p_errors);
    update batches x
       set status = case when x.status = 'cancelling' then x.status else 'finalizing' end,
           finalizing_at = coalesce(x.finalizing_at, now()), errors = coalesce(x.errors, p_error),
           outcome = begin_batch_end.outcome,
           output_file_id = begin_batch_end.output_file_id,
           error_file_id = begin_batch_end.error_file_id
     where x.organisation_id = p_organisation and x.batch_id = p_batch;
end $$;

-- Ends a batch whose files are written: they can be read, its lines are in them, its sums on it.
create function end_batch(p_organisation uuid, p_batch uuid, p_outcome text) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    b record;
begin
    select * into b from batches x
     where x.organisation_id = p_organisation and x.batch_id = p_batch for no key update;
    if b.ended_at is not null then
        return false;
    end if;
    update files f set state = 'ready'
     where f.organisation_id = p_organisation and f.file_id in (b.output_file_id, b.error_file_id);
    update batches x
       set status = p_outcome, ended_at = now(), completed = s.completed, failed = s.failed,
           prompt_tokens = s.prompt, cached_tokens = s.cached, completion_tokens = s.completion,
           reasoning_tokens = s.reasoning, billed_usd = s.billed,
           output_file_id = (select f.file_id from files f where f.organisation_id = p_organisation
                                and f.file_id = b.output_file_id),
           error_file_id = (select f.file_id from files f where f.organisation_id = p_organisation
                               and f.file_id = b.error_file_id)
      from (select count(*) filter (where l.state = 'answered') as completed,
                   count(*) filter (where l.state = 'failed') as failed,
                   coalesce(sum(l.prompt_tokens), 0) as prompt,
                   coalesce(sum(l.cached_tokens), 0) as cached,
                   coalesce(sum(l.completion_tokens), 0) as completion,
                   coalesce(sum(l.reasoning_tokens), 0) as reasoning,
                   coalesce(sum(l.billed_usd), 0) as billed
              from batch_lines l
             where l.organisation_id = p_organisation and l.batch_id = p_batch) s
     where x.organisation_id = p_organisation and x.batch_id = p_batch;
    delete from batch_lines l
     where l.organisation_id = p_organisation and l.batch_id = p_batch;
    return true;
end $$;

-- Batches nobody has confirmed a workflow of, and such as should long be over: their workflow was
-- ended from outside, and another one takes up what is on file.
create function stranded_batches(p_older_than interval, p_limit int)
    returns table (organisation_id uuid, team_id uuid, key_id uuid, batch_id uuid,
                   expires_at timestamptz)
    language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select b.organisation_id, b.team_id, b.key_id, b.batch_id, b.expires_at
      from batches b
     where b.ended_at is null and b.created_at < now() - p_older_than
       and (b.started_at is null
            or least(b.expires_at, b.cancelling_at) < now() - interval '10 minutes')
     order by b.created_at limit p_limit
$$;

-- Removes files past their time, and such as were begun and never finished. An input that a batch
-- still reads, and what a batch is writing, stay.
create function remove_files(p_limit int, p_dry boolean, out files bigint, out bytes bigint)
    language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    f record;
begin
    files := 0; bytes := 0;
    for f in
        select x.organisation_id, x.file_id, x.bytes, x.state from public.files x
         where (x.expires_at < now()
                or (x.state = 'writing' and x.created_at < now() - interval '1 day'))
           and not exists (select from batches b
                            where b.organisation_id = x.organisation_id and b.ended_at is null
                              and x.file_id in (b.input_file_id, b.output_file_id, b.error_file_id))
         order by x.expires_at limit case when p_dry then null else p_limit end
    loop
        if not p_dry then
            perform from public.files x
              where x.organisation_id = f.organisation_id and x.file_id = f.file_id
                and x.state = f.state for update skip locked;
            continue when not found;
            -- Looked at again under the lock: a batch of it may have been filed meanwhile.
            perform from batches b
              where b.organisation_id = f.organisation_id and b.ended_at is null
                and f.file_id in (b.input_file_id, b.output_file_id, b.error_file_id);
            continue when found;
            delete from file_parts p
             where p.organisation_id = f.organisation_id and p.file_id = f.file_id;
            delete from public.files x
             where x.organisation_id = f.organisation_id and x.file_id = f.file_id;
        end if;
        files := files + 1;
        bytes := bytes + f.bytes;
    end loop;
end $$;

do $$
declare name text;
begin
    foreach name in array array['stranded_batches(interval, int)', 'remove_files(int, boolean)']
    loop
        execute format('revoke execute on function %s from public', name);
        execute format('grant execute on function %s to overline_app', name);
    end loop;
end $$;
grant create on schema public to overline_definer;
alter function stranded_batches(interval, int) owner to overline_definer;
alter function remove_files(int, boolean) owner to overline_definer;
revoke create on schema public from overline_definer;
