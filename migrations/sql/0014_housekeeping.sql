-- How long large payloads, journals and events are kept, and what is done with them then.

-- Until when a blob is kept, whatever points to it. Those from before are kept for ever: nobody
-- noted what points to them. With a workflow it is a payload of that workflow's history.
alter table blobs add column keep_until timestamptz not null default 'infinity';
alter table blobs add column workflow_id text;
-- Ciphertext: nothing to compress.
alter table blobs alter column data set storage external;
-- Payloads of workflows that are no tenant's lie under the nil id.
-- squawk-ignore ban-drop-constraint
alter table blobs drop constraint blobs_organisation_id_fkey;
-- squawk-ignore require-concurrent-index-creation
create index blobs_by_end on blobs (keep_until) where keep_until < 'infinity';
grant update (keep_until) on blobs to overline_app;

-- Which tasks point to a blob: what a tool answered at length.
create table blob_uses (
    organisation_id uuid not null,
    sha256          bytea not null,
    task_id         uuid not null,
    primary key (organisation_id, sha256, task_id),
    foreign key (organisation_id, sha256) references blobs,
    foreign key (organisation_id, task_id) references tasks
);
create index blob_uses_by_task on blob_uses (organisation_id, task_id);
alter table blob_uses enable row level security;
alter table blob_uses force row level security;
create policy tenant on blob_uses
    using      (organisation_id = current_setting('overline.organisation_id')::uuid)
    with check (organisation_id = current_setting('overline.organisation_id')::uuid);
grant select, insert on blob_uses to overline_app;
grant select on blob_uses to overline_reader;

-- Whose a workflow is, by its id; the nil id when it is no tenant's, or not known.
create function organisation_of_workflow(p_workflow text) returns uuid
    language plpgsql stable security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    kind   text := substring(p_workflow from '^([a-z]+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}');
    id     uuid;
    whose  uuid;
begin
    if kind is null then
        return '00000000-0000-0000-0000-000000000000';
    end if;
    id := substring(p_workflow from '^[a-z]+-([0-9a-f-]{36})')::uuid;
    case kind
        when 'scheduled' then whose := id;
        when 'task' then
            select t.organisation_id into whose from tasks t where t.task_id = id;
        when 'ingest' then
            select d.organisation_id into whose from documents d where d.document_id = id;
        when 'webhook' then
            select w.organisation_id into whose from webhook_deliveries w where w.delivery_id = id;
        when 'session' then
            select s.organisation_id into whose from sessions s where s.session_id = id;
        else
            whose := null;
    end case;
    return coalesce(whose, '00000000-0000-0000-0000-000000000000');
end $$;

-- Removes what streamed of tasks that ended long ago: journal, events but the last, the token ids
-- of their prompts, and their hold on blobs. Steps, answers and the ledger stay. `p_dry`: counts
-- what all of them have, and removes nothing.
alter table tasks add column content_removed_at timestamptz;
-- squawk-ignore require-concurrent-index-creation
create index tasks_with_content on tasks (finished_at)
    where finished_at is not null and content_removed_at is null;

create function remove_content(
    p_older_than interval, p_limit int, p_dry boolean,
    out tasks bigint, out chunks bigint, out events bigint, out prompts bigint, out uses bigint
)
    language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    t record;
    n bigint;
begin
    tasks := 0; chunks := 0; events := 0; prompts := 0; uses := 0;
    if p_dry then
        select count(*) into tasks from public.tasks x
         where x.finished_at < now() - p_older_than and x.content_removed_at is null;
        select count(*) into chunks
          from public.tasks x join token_chunks c using (organisation_id, task_id)
         where x.finished_at < now() - p_older_than and x.content_removed_at is null;
        select count(*) into events
          from public.tasks x join task_events e using (organisation_id, task_id)
         where x.finished_at < now() - p_older_than and x.content_removed_at is null
           and e.dedupe is distinct from 'task.finished';
        select count(*) into prompts
          from public.tasks x join generations g using (organisation_id, task_id)
         where x.finished_at < now() - p_older_than and x.content_removed_at is null
           and octet_length(g.prompt_ids) > 0;
        select count(*) into uses
          from public.tasks x join blob_uses u using (organisation_id, task_id)
         where x.finished_at < now() - p_older_than and x.content_removed_at is null;
        return;
    end if;
    for t in
        select x.organisation_id, x.task_id from public.tasks x
         where x.finished_at < now() - p_older_than and x.content_removed_at is null
         order by x.finished_at limit p_limit
           for no key update skip locked
    loop
        delete from token_chunks c
         where c.organisation_id = t.organisation_id and c.task_id = t.task_id;
        get diagnostics n = row_count;
        chunks := chunks + n;
        -- The last one stays: whoever reads the stream still learns how the task ended.
        delete from task_events e
         where e.organisation_id = t.organisation_id and e.task_id = t.task_id
           and e.dedupe is distinct from 'task.finished';
        get diagnostics n = row_count;
        events := events + n;
        update generations g set prompt_ids = ''
          from steps s
         where s.organisation_id = t.organisation_id and s.task_id = t.task_id
           and g.organisation_id = s.organisation_id and g.call_key = s.call_key
           and octet_length(g.prompt_ids) > 0;
        get diagnostics n = row_count;
        prompts := prompts + n;
        delete from blob_uses u
         where u.organisation_id = t.organisation_id and u.task_id = t.task_id;
        get diagnostics n = row_count;
        uses := uses + n;
        update public.tasks x set content_removed_at = now()
         where x.organisation_id = t.organisation_id and x.task_id = t.task_id;
        tasks := tasks + 1;
    end loop;
end $$;

-- Removes blobs past their time that are no payload and that no task points to.
create function remove_blobs(p_limit int, p_dry boolean, out blobs bigint, out bytes bigint)
    language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
begin
    if p_dry then
        select count(*), coalesce(sum(b.size_bytes), 0) into blobs, bytes from public.blobs b
         where b.keep_until < now() and b.workflow_id is null
           and not exists (select from blob_uses u where u.organisation_id = b.organisation_id
                              and u.sha256 = b.sha256);
        return;
    end if;
    with old as (
        select b.organisation_id, b.sha256 from public.blobs b
         where b.keep_until < now() and b.workflow_id is null
           and not exists (select from blob_uses u where u.organisation_id = b.organisation_id
                              and u.sha256 = b.sha256)
         order by b.keep_until limit p_limit
           for update skip locked
    ), gone as (
        delete from public.blobs b using old
         where b.organisation_id = old.organisation_id and b.sha256 = old.sha256
        returning b.size_bytes
    )
    select count(*), coalesce(sum(size_bytes), 0) into blobs, bytes from gone;
end $$;

-- Workflows whose payloads are past their time: whether they go is for Temporal to say.
create function workflows_with_old_payloads(p_after text, p_limit int)
    returns table (workflow_id text, blobs bigint, bytes bigint)
    language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select b.workflow_id, count(*), sum(b.size_bytes)::bigint
      from public.blobs b
     where b.keep_until < now() and b.workflow_id > p_after
     group by b.workflow_id order by b.workflow_id limit p_limit
$$;

-- Removes a workflow's payloads that are past their time, or keeps them for a while longer.
create function end_payloads(
    p_workflow text, p_keep interval, out blobs bigint, out bytes bigint
)
    language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
begin
    if p_keep is not null then
        update public.blobs b set keep_until = now() + p_keep
         where b.workflow_id = p_workflow and b.keep_until < now();
        blobs := 0;
        bytes := 0;
        return;
    end if;
    with gone as (
        delete from public.blobs b
         where b.workflow_id = p_workflow and b.keep_until < now()
        returning b.size_bytes
    )
    select count(*), coalesce(sum(size_bytes), 0) into blobs, bytes from gone;
end $$;

-- What may look past the fence, and remove what the processes only add to.
grant select on steps, documents, webhook_deliveries, sessions, token_chunks, task_events, generations,
    blobs, blob_uses to overline_definer;
grant delete on token_chunks, task_events, blobs, blob_uses to overline_definer;
grant update on tasks, generations, blobs to overline_definer;
do $$
declare name text;
begin
    foreach name in array array[
        'organisation_of_workflow(text)', 'remove_content(interval, int, boolean)',
        'remove_blobs(int, boolean)', 'workflows_with_old_payloads(text, int)',
        'end_payloads(text, interval)']
    loop
        execute format('revoke execute on function %s from public', name);
        execute format('grant execute on function %s to overline_app', name);
    end loop;
end $$;
grant create on schema public to overline_definer;
alter function organisation_of_workflow(text) owner to overline_definer;
alter function remove_content(interval, int, boolean) owner to overline_definer;
alter function remove_blobs(int, boolean) owner to overline_definer;
alter function workflows_with_old_payloads(text, int) owner to overline_definer;
alter function end_payloads(text, interval) owner to overline_definer;
revoke create on schema public from overline_definer;
