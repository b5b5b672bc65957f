-- What was asked, how far it is, what it said: tasks, their calls and the token journal.

create table tasks (
    organisation_id   uuid not null,
    task_id           uuid not null,
    team_id           uuid not null,
    key_id            uuid not null,
    workflow_id       text not null,
    run_id            text,
    idempotency_key   text,
    request_digest    text not null,
    status            text not null default 'accepted' check (status in
                        ('accepted', 'running', 'succeeded', 'failed', 'cancelled', 'discarded')),
    route             text not null,
    input             jsonb not null,
    user_id           text,
    tags              jsonb not null default '{}',
    worst_case_usd    numeric(18, 9) not null check (worst_case_usd >= 0),
    max_cost_usd      numeric(18, 9) check (max_cost_usd >= 0),
    answer            text,
    error             jsonb,
    next_event        bigint not null default 1,
    steps             int not null default 0,
    prompt_tokens     bigint not null default 0,
    completion_tokens bigint not null default 0,
    cached_tokens     bigint not null default 0,
    billed_usd        numeric(18, 9) not null default 0,
    waste_usd         numeric(18, 9) not null default 0,
    saved_usd         numeric(18, 9) not null default 0,
    created_at        timestamptz not null default now(),
    started_at        timestamptz,
    finished_at       timestamptz,
    primary key (organisation_id, task_id),
    unique (organisation_id, key_id, idempotency_key),
    foreign key (organisation_id, team_id) references teams,
    foreign key (organisation_id, key_id) references api_keys
) with (fillfactor = 70);
create index tasks_by_status on tasks (organisation_id, status, task_id);
create index tasks_unstarted on tasks (created_at) where status = 'accepted' and run_id is null;

create table holds (
    organisation_id   uuid not null,
    hold_id           uuid not null default uuidv7(),
    call_key          text not null,
    task_id           uuid not null,
    team_id           uuid not null,
    key_id            uuid not null,
    step              int not null check (step >= 1),
    amount_usd        numeric(18, 9) not null check (amount_usd >= 0),
    budget_ids        uuid[] not null,
    state             text not null default 'held' check (state in ('held', 'settled')),
    -- What every later query is sure to see: compared with the transaction that last changed a
    -- collection, it tells whether an answer may be cached under the revision of today.
    admitted_under    pg_snapshot not null default pg_current_snapshot(),
    outcome           text,
    billed_usd        numeric(18, 9),
    waste_usd         numeric(18, 9),
    saved_usd         numeric(18, 9),
    overage_usd       numeric(18, 9),
    prompt_tokens     int,
    completion_tokens int,
    cached_tokens     int,
    created_at        timestamptz not null default now(),
    settled_at        timestamptz,
    primary key (organisation_id, hold_id),
    unique (organisation_id, call_key),
    foreign key (organisation_id, task_id) references tasks
) with (fillfactor = 70);
create index holds_open on holds (organisation_id, task_id) where state = 'held';

create table steps (
    organisation_id   uuid not null,
    task_id           uuid not null,
    step              int not null check (step >= 1),
    call_key          text not null,
    status            text not null default 'running' check (status in
                        ('running', 'succeeded', 'failed', 'cancelled', 'cached')),
    model             text,
    decision          jsonb,
    provenance        jsonb,
    text              text,
    tool_call         jsonb,
    tool_result       text,
    finish_reason     text,
    prompt_tokens     int not null default 0,
    completion_tokens int not null default 0,
    cached_tokens     int not null default 0,
    billed_usd        numeric(18, 9) not null default 0,
    waste_usd         numeric(18, 9) not null default 0,
    saved_usd         numeric(18, 9) not null default 0,
    started_at        timestamptz not null default now(),
    ended_at          timestamptz,
    primary key (organisation_id, task_id, step),
    foreign key (organisation_id, task_id) references tasks
) with (fillfactor = 70);

-- One row per candidate of a call. prompt_ids are little-endian int32, packed: a prompt is read
-- and written whole, and four bytes a token are half of what an array in text form costs to move.
create table generations (
    organisation_id   uuid not null,
    generation_key    text not null,
    call_key          text not null,
    candidate         int not null check (candidate >= 0),
    workflow_id       text not null,
    task_id           uuid not null,
    step              int not null check (step >= 1),
    channel           text not null check (channel in ('answer', 'tool_call')),
    model             text not null,
    model_version     text not null,
    tokenizer_version text not null,
    deployment        text not null,
    prompt_ids        bytea not null check (octet_length(prompt_ids) % 4 = 0),
    provenance        jsonb,
    state             text not null default 'staged' check (state in
                        ('staged', 'running', 'finished', 'settled')),
    epoch             int not null default 0,
    restarted_after   int not null default 0,
    next_seq          int not null default 0,
    finish_reason     text,
    stop_reason       text,
    outcome           text,
    created_at        timestamptz not null default now(),
    finished_at       timestamptz,
    primary key (organisation_id, generation_key),
    unique (organisation_id, call_key, candidate),
    foreign key (organisation_id, task_id) references tasks
) with (fillfactor = 70);

create table generation_attempts (
    organisation_id   uuid not null,
    generation_key    text not null,
    epoch             int not null check (epoch >= 1),
    call_key          text not null,
    request_id        text not null,
    replica           text not null,
    temporal_attempt  int not null,
    trace_id          text,
    outcome           text check (outcome in ('succeeded', 'failed', 'cancelled', 'lost')),
    cause             text,
    error_code        text,
    journaled_tokens  int not null default 0,
    prompt_tokens     int check (prompt_tokens >= 0),
    cached_tokens     int check (cached_tokens between 0 and prompt_tokens),
    completion_tokens int check (completion_tokens >= 0),
    usage_source      text check (usage_source in ('engine', 'journal')),
    queue_ms          double precision,
    first_token_ms    double precision,
    duration_ms       double precision,
    started_at        timestamptz not null default clock_timestamp(),
    ended_at          timestamptz,
    primary key (organisation_id, generation_key, epoch),
    foreign key (organisation_id, generation_key) references generations
) with (fillfactor = 70);
create index generation_attempts_by_call on generation_attempts (organisation_id, call_key);

-- The token journal. event_seq comes from the task's own counter, shared with task_events: one
-- ordered stream without gaps.
create table token_chunks (
    organisation_id uuid not null,
    workflow_id     text not null,
    step_key        text not null,
    seq             int not null,
    epoch           int not null,
    task_id         uuid not null,
    event_seq       bigint not null,
    token_ids       int4[] not null,
    text            text not null,
    at              timestamptz not null default now(),
    primary key (organisation_id, step_key, seq),
    unique (organisation_id, task_id, event_seq)
);

create table task_events (
    organisation_id uuid not null,
    task_id         uuid not null,
    seq             bigint not null,
    step            int,
    type            text not null,
    payload         jsonb not null,
    dedupe          text,
    at              timestamptz not null default now(),
    primary key (organisation_id, task_id, seq),
    unique (organisation_id, task_id, dedupe)
);
