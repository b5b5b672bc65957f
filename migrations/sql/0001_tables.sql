-- Tables, their tenant fence and their grants.
--
-- Every table of a tenant carries organisation_id and starts every unique key with it, so that
-- neither a duplicate nor a foreign key tells one tenant about another's rows.

create table organisations (
    organisation_id uuid primary key default uuidv7(),
    name            text not null,
    created_at      timestamptz not null default now()
);

create table teams (
    organisation_id uuid not null references organisations,
    team_id         uuid not null default uuidv7(),
    name            text not null,
    created_at      timestamptz not null default now(),
    primary key (organisation_id, team_id),
    unique (organisation_id, name)
);

create table api_keys (
    organisation_id uuid not null,
    key_id          uuid not null default uuidv7(),
    team_id         uuid not null,
    name            text not null,
    secret_hash     bytea not null,
    scopes          text[] not null,
    enabled         boolean not null default true,
    expires_at      timestamptz,
    created_at      timestamptz not null default now(),
    primary key (organisation_id, key_id),
    foreign key (organisation_id, team_id) references teams,
    check (octet_length(secret_hash) = 32)
);
create index api_keys_by_id on api_keys (key_id);

-- One row per thing that can be limited. No cap means counted but not limited. depth orders the
-- locks: always leaf to root (task, key, team, organisation), so chains cannot deadlock.
create table budgets (
    organisation_id uuid not null references organisations,
    budget_id       uuid not null default uuidv7(),
    scope           text not null check (scope in ('task', 'key', 'team', 'organisation')),
    scope_id        uuid not null,
    depth           smallint not null generated always as (
                        case scope when 'task' then 0 when 'key' then 1
                                   when 'team' then 2 else 3 end) stored,
    cap_usd         numeric(18, 9) check (cap_usd >= 0),
    held_usd        numeric(18, 9) not null default 0 check (held_usd >= 0),
    spent_usd       numeric(18, 9) not null default 0 check (spent_usd >= 0),
    overage_usd     numeric(18, 9) not null default 0 check (overage_usd >= 0),
    created_at      timestamptz not null default now(),
    primary key (organisation_id, budget_id),
    unique (organisation_id, scope_id),
    constraint never_over check (cap_usd is null or held_usd + spent_usd <= cap_usd)
) with (fillfactor = 50);

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

-- What can answer: the same for every organisation.
create table models (
    name              text primary key,
    version           text not null,
    context_window    int not null check (context_window > 0),
    max_output_tokens int not null check (max_output_tokens >= 0),
    capabilities      text[] not null,
    tokenizer_version text not null,
    licence           text not null
);

create table deployments (
    deployment   text primary key,
    model        text not null references models,
    engine       text not null,
    urls         text[] not null,
    triton_model text not null,
    enabled      boolean not null default true
);

create table prices (
    model                        text not null references models,
    valid_from                   timestamptz not null,
    input_usd_per_million        numeric(18, 9) not null check (input_usd_per_million >= 0),
    cached_input_usd_per_million numeric(18, 9) not null check (cached_input_usd_per_million >= 0),
    output_usd_per_million       numeric(18, 9) not null check (output_usd_per_million >= 0),
    primary key (model, valid_from)
);

create table routes (
    name        text primary key,
    description text not null,
    candidates  jsonb not null
);

create table catalogue_state (
    only_row      boolean primary key default true check (only_row),
    digest        text not null,
    changed_at    timestamptz not null default now(),
    changed_in    xid8 not null default pg_current_xact_id()
);

create table collections (
    organisation_id uuid not null references organisations,
    collection_id   uuid not null default uuidv7(),
    name            text not null,
    description     text not null default '',
    embedding_model text not null,
    dimensions      int not null check (dimensions between 1 and 16000),
    revision        bigint not null default 0,
    revised_in      xid8 not null default pg_current_xact_id(),
    created_at      timestamptz not null default now(),
    primary key (organisation_id, collection_id),
    unique (organisation_id, name)
);

create table documents (
    organisation_id uuid not null,
    document_id     uuid not null default uuidv7(),
    collection_id   uuid not null,
    external_id     text not null,
    title           text not null,
    text            text not null,
    digest          text not null,
    metadata        jsonb not null default '{}',
    version         int not null default 1,
    -- The version whose chunks are searched; 0 until the first one is complete.
    current_version int not null default 0,
    status          text not null default 'pending' check (status in
                      ('pending', 'ready', 'failed')),
    error           jsonb,
    chunk_count     int not null default 0,
    created_at      timestamptz not null default now(),
    updated_at      timestamptz not null default now(),
    primary key (organisation_id, document_id),
    unique (organisation_id, collection_id, external_id),
    foreign key (organisation_id, collection_id) references collections
);

-- A chunk is staged without its embedding, and searched once its version is the document's current
-- one, by which time each has one.
create table chunks (
    organisation_id uuid not null,
    chunk_id        uuid not null default uuidv7(),
    document_id     uuid not null,
    version         int not null,
    ordinal         int not null check (ordinal >= 0),
    collection_id   uuid not null,
    text            text not null,
    embedding       vector,
    primary key (organisation_id, document_id, version, ordinal),
    foreign key (organisation_id, document_id) references documents,
    foreign key (organisation_id, collection_id) references collections
);
create index chunks_by_collection on chunks (organisation_id, collection_id);

create table cache_entries (
    organisation_id   uuid not null references organisations,
    cache_entry_id    uuid not null default uuidv7(),
    key               text not null,
    text              text,
    tool_call         jsonb,
    finish_reason     text,
    model             text not null,
    model_version     text,
    prompt_tokens     int not null,
    completion_tokens int not null,
    billed_usd        numeric(18, 9) not null,
    revisions         jsonb not null,
    catalogue_digest  text not null,
    task_id           uuid not null,
    hits              bigint not null default 0,
    created_at        timestamptz not null default now(),
    expires_at        timestamptz,
    primary key (organisation_id, cache_entry_id),
    unique (organisation_id, key)
);

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

-- The tenant fence. current_setting without missing_ok: no tenant bound is an error, never an
-- empty answer. FORCE: the owner is fenced too.
do $$
declare name text;
begin
    foreach name in array array[
        'organisations', 'teams', 'api_keys', 'budgets', 'holds', 'tasks', 'steps', 'generations',
        'generation_attempts', 'token_chunks', 'task_events', 'model_calls', 'tool_calls', 'blobs',
        'collections', 'documents', 'chunks', 'cache_entries', 'audit_log', 'audit_heads']
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

-- Append-only: statement triggers, so that even an UPDATE that would match nothing is refused,
-- for every role that does not take the trigger off first.
create function refuse_change() returns trigger
    language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise exception '% is append-only: % refused', tg_table_name, tg_op
        using errcode = 'insufficient_privilege';
end $$;

create trigger append_only before update or delete or truncate on model_calls
    for each statement execute function refuse_change();
create trigger append_only before update or delete or truncate on audit_log
    for each statement execute function refuse_change();

-- Partitions. The default one keeps settlement from failing when nobody made the next month in
-- time; it should stay empty. Each partition carries the fence and the trigger itself, because
-- PostgreSQL applies neither of the parent's to a direct access.
create function fence_partition(partition text) returns void
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    execute format('alter table public.%I enable row level security', partition);
    execute format('alter table public.%I force row level security', partition);
    execute format($policy$
        create policy tenant on public.%I
            using      (organisation_id = current_setting('overline.organisation_id')::uuid)
            with check (organisation_id = current_setting('overline.organisation_id')::uuid)
        $policy$, partition);
    execute format('create trigger append_only before update or delete or truncate on public.%I
        for each statement execute function public.refuse_change()', partition);
end $$;
revoke execute on function fence_partition(text) from public;

create table model_calls_default partition of model_calls default;
select fence_partition('model_calls_default');

-- Makes this month's partition and those of the following `months`. Safe to repeat and to run
-- from several processes. Definer: a partition must belong to the owner of the parent.
create function ensure_partitions(months int default 3) returns int
    language plpgsql security definer
    set search_path = pg_catalog, public, pg_temp
    set lock_timeout = '5s'
    set timezone = 'UTC' as $$
declare
    first   timestamptz;
    name    text;
    created int := 0;
begin
    perform pg_advisory_xact_lock(hashtext('overline.ensure_partitions'));
    for i in 0 .. least(greatest(months, 0), 120) loop
        first := date_trunc('month', now()) + make_interval(months => i);
        name := 'model_calls_' || to_char(first, 'YYYY_MM');
        if to_regclass('public.' || name) is null then
            execute format('create table public.%I partition of public.model_calls
                for values from (%L) to (%L)', name, first, first + interval '1 month');
            perform public.fence_partition(name);
            created := created + 1;
        end if;
    end loop;
    return created;
end $$;
revoke execute on function ensure_partitions(int) from public;
select ensure_partitions(12);

-- Grants. The processes own nothing and can neither truncate nor reference; the catalogue is
-- theirs to read only; the ledger and the audit log are not theirs to change.
grant usage on schema public to overline_app, overline_reader, overline_definer;
grant select, insert on organisations, teams, token_chunks, task_events, tool_calls, blobs,
    model_calls to overline_app;
grant select, insert, update on api_keys, budgets, holds, tasks, steps, generations,
    generation_attempts, collections, documents to overline_app;
grant select, insert, update, delete on chunks, cache_entries to overline_app;
grant select on audit_log, audit_heads, models, deployments, prices, routes, catalogue_state
    to overline_app;
grant execute on function ensure_partitions(int) to overline_app;
grant select on alembic_version to overline_app, overline_reader;

grant select on all tables in schema public to overline_reader;
revoke select on api_keys from overline_reader;
grant select (organisation_id, key_id, team_id, name, scopes, enabled, expires_at, created_at)
    on api_keys to overline_reader;
do $$
declare partition regclass;
begin
    for partition in select inhrelid::regclass from pg_inherits where inhparent = 'model_calls'::regclass
    loop
        execute format('revoke all on %s from overline_reader', partition);
    end loop;
end $$;

grant select on api_keys, tasks, prices to overline_definer;
grant select, insert on audit_log to overline_definer;
grant select, insert, update on audit_heads to overline_definer;
