-- Who is told of a task's end, and whether they were.

-- One row per end of a task that somebody asked to be told of, filed in the transaction that ended
-- it: an end that is on file is told of, whatever dies afterwards.
create table webhook_deliveries (
    organisation_id uuid not null,
    delivery_id     uuid not null default uuidv7(),
    task_id         uuid not null,
    event           text not null,
    url             text not null,
    secret          text,
    state           text not null default 'pending' check (state in
                      ('pending', 'delivered', 'failed', 'gone')),
    attempts        int not null default 0,
    last_attempt_at timestamptz,
    last_status     int,
    last_error      text,
    next_attempt_at timestamptz,
    -- When a workflow was last seen to be started for it; none: nobody has confirmed one.
    started_at      timestamptz,
    created_at      timestamptz not null default now(),
    ended_at        timestamptz,
    primary key (organisation_id, delivery_id),
    unique (organisation_id, task_id, event),
    foreign key (organisation_id, task_id) references tasks
) with (fillfactor = 80);
create index webhook_deliveries_pending on webhook_deliveries (created_at) where state = 'pending';

alter table webhook_deliveries enable row level security;
alter table webhook_deliveries force row level security;
create policy tenant on webhook_deliveries
    using      (organisation_id = current_setting('overline.organisation_id')::uuid)
    with check (organisation_id = current_setting('overline.organisation_id')::uuid);
grant select, insert, update on webhook_deliveries to overline_app;
grant select on webhook_deliveries to overline_reader, overline_definer;

-- A trigger and not a line in finish_task: whichever statement ends a task, now or later, files it.
create function file_webhook() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    wanted jsonb := new.input -> 'webhook';
    event  text := 'task.' || new.status;
begin
    if jsonb_typeof(wanted) = 'object' and coalesce(wanted -> 'events' ? event, true) then
        insert into webhook_deliveries (organisation_id, task_id, event, url, secret)
        values (new.organisation_id, new.task_id, event, wanted ->> 'url', wanted ->> 'secret')
        on conflict do nothing;
    end if;
    return null;
end $$;
create trigger file_webhook after update of status on tasks
    for each row
    when (old.finished_at is null and new.finished_at is not null
          and new.status in ('succeeded', 'failed', 'cancelled'))
    execute function file_webhook();

-- Counts an attempt and returns what is to be said; nothing when there is nothing to say any more.
create function begin_webhook(p_organisation uuid, p_delivery uuid)
    returns table (task_id uuid, event text, url text, secret text, attempts int, status text,
                   answer text, error jsonb, steps int, prompt_tokens bigint,
                   completion_tokens bigint, cached_tokens bigint, billed_usd numeric,
                   waste_usd numeric, saved_usd numeric, user_id text, tags jsonb,
                   created_at timestamptz, finished_at timestamptz)
    language sql set search_path = pg_catalog, public, pg_temp as $$
    with begun as (
        update webhook_deliveries w
           set attempts = w.attempts + 1, last_attempt_at = now(), next_attempt_at = null,
               started_at = coalesce(w.started_at, now())
         where w.organisation_id = p_organisation and w.delivery_id = p_delivery
           and w.state = 'pending'
        returning w.task_id, w.event, w.url, w.secret, w.attempts
    )
    select b.task_id, b.event, b.url, b.secret, b.attempts, t.status, t.answer, t.error, t.steps,
           t.prompt_tokens, t.completion_tokens, t.cached_tokens, t.billed_usd, t.waste_usd,
           t.saved_usd, t.user_id, t.tags, t.created_at, t.finished_at
      from begun b
      join tasks t on t.organisation_id = p_organisation and t.task_id = b.task_id
$$;

-- Deliveries of every organisation that no workflow works at, as far as can be told: never
-- started, or long past the attempt that was announced.
create function unstarted_webhooks(p_older_than interval, p_limit int)
    returns table (organisation_id uuid, delivery_id uuid)
    language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select w.organisation_id, w.delivery_id
      from webhook_deliveries w
     where w.state = 'pending' and w.created_at < now() - p_older_than
       and (w.started_at is null
            or greatest(w.started_at, w.last_attempt_at, w.next_attempt_at)
               < now() - interval '10 minutes')
     order by w.created_at limit p_limit
$$;
revoke execute on function unstarted_webhooks(interval, int) from public;
grant execute on function unstarted_webhooks(interval, int) to overline_app;
grant create on schema public to overline_definer;
alter function unstarted_webhooks(interval, int) owner to overline_definer;
revoke create on schema public from overline_definer;
