-- What is to be asked again and again, and what came of each time. When is Temporal's business: its
-- schedule carries the same ids in its name, and nothing else.

create table schedules (
    organisation_id  uuid not null,
    schedule_id      uuid not null,
    team_id          uuid not null,
    key_id           uuid not null,
    name             text not null check (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$'),
    timing           jsonb not null,
    request          jsonb not null,
    resolved         jsonb not null,
    first_max_tokens int not null check (first_max_tokens >= 1),
    created_at       timestamptz not null default now(),
    primary key (organisation_id, schedule_id),
    unique (organisation_id, name),
    foreign key (organisation_id, team_id) references teams,
    foreign key (organisation_id, key_id) references api_keys
);

create table schedule_runs (
    organisation_id uuid not null,
    schedule_id     uuid not null,
    fire            text not null,
    at              timestamptz not null default now(),
    task_id         uuid,
    code            text,
    detail          text,
    primary key (organisation_id, schedule_id, fire),
    foreign key (organisation_id, schedule_id) references schedules on delete cascade,
    check ((task_id is null) <> (code is null))
);
create index schedule_runs_by_time on schedule_runs (organisation_id, schedule_id, at);

do $$
declare name text;
begin
    foreach name in array array['schedules', 'schedule_runs']
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
grant select, insert, delete on schedules to overline_app;
grant select, insert on schedule_runs to overline_app;
grant select on schedules, schedule_runs to overline_reader;
