-- The ledger: one row per attempt of a model call, append-only, by month of the attempt's start.
create table model_calls (
    organisation_id              uuid not null,
    model_call_id                uuid not null default uuidv7(),
    started_at                   timestamptz not null,
    ended_at                     timestamptz,
    booked_at                    timestamptz not null default now(),
    team_id                      uuid not null,
    key_id                       uuid not null,
    user_id                      text,
    tags                         jsonb not null,
    task_id                      uuid not null,
    workflow_id                  text not null,
    run_id                       text,
    trace_id                     text,
    step                         int not null,
    call_key                     text not null,
    candidate                    int not null,
    epoch                        int not null,
    request_id                   text,
    route                        text not null,
    model                        text not null,
    model_version                text,
    deployment                   text,
    replica                      text,
    outcome                      text not null check (outcome in
                                   ('succeeded', 'failed', 'cancelled', 'lost', 'cached')),
    waste_cause                  text,
    error_code                   text,
    uncached_input_tokens        int not null check (uncached_input_tokens >= 0),
    cached_input_tokens          int not null check (cached_input_tokens >= 0),
    output_tokens                int not null check (output_tokens >= 0),
    wasted_uncached_input_tokens int not null
        check (wasted_uncached_input_tokens between 0 and uncached_input_tokens),
    wasted_cached_input_tokens   int not null
        check (wasted_cached_input_tokens between 0 and cached_input_tokens),
    wasted_output_tokens         int not null
        check (wasted_output_tokens between 0 and output_tokens),
    input_usd_per_million        numeric(18, 9),
    cached_input_usd_per_million numeric(18, 9),
    output_usd_per_million       numeric(18, 9),
    cost_usd                     numeric(18, 9) not null,
    billed_usd                   numeric(18, 9) not null check (billed_usd >= 0),
    waste_usd                    numeric(18, 9) not null check (waste_usd >= 0),
    saved_usd                    numeric(18, 9) not null default 0,
    usage_source                 text not null check (usage_source in
                                   ('engine', 'journal', 'cache')),
    queue_ms                     double precision,
    first_token_ms               double precision,
    duration_ms                  double precision,
    primary key (organisation_id, started_at, model_call_id),
    unique (organisation_id, call_key, candidate, epoch, started_at),
    check (cost_usd = billed_usd + waste_usd)
) partition by range (started_at);
create index model_calls_by_team on model_calls (organisation_id, team_id, started_at)
    include (billed_usd);
create index model_calls_by_task on model_calls (organisation_id, task_id);

create table tool_calls (
    organisation_id uuid not null,
    task_id         uuid not null,
    call_id         text not null,
    attempt         int not null check (attempt >= 1),
    step            int not null,
    name            text not null,
    arguments       jsonb not null,
    result_text     text,
    ok              boolean not null,
    error           jsonb,
    started_at      timestamptz not null,
    ended_at        timestamptz not null,
    primary key (organisation_id, task_id, call_id, attempt),
    foreign key (organisation_id, task_id) references tasks
);

create table blobs (
    organisation_id uuid not null references organisations,
    sha256          bytea not null check (octet_length(sha256) = 32),
    content_type    text not null,
    size_bytes      bigint not null generated always as (octet_length(data)) stored,
    data            bytea not null,
    created_at      timestamptz not null default now(),
    primary key (organisation_id, sha256)
);

-- Who did what: one hash chain per organisation.
create table audit_log (
    organisation_id uuid not null references organisations,
    seq             bigint not null,
    at              timestamptz not null,
    actor           text not null,
    action          text not null,
    subject         text not null,
    detail          jsonb not null,
    previous        bytea not null,
    digest          bytea not null,
    primary key (organisation_id, seq)
);

create table audit_heads (
    organisation_id uuid not null references organisations,
    seq             bigint not null,
    digest          bytea not null,
    primary key (organisation_id)
);
