-- Who may call, and how much.
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
