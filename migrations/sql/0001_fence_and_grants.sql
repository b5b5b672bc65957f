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
