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
    channel           text not null default 'answer' check (channel in ('answer', 'tool_call')),
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
