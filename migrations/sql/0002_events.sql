-- The hot path, beside the rows it locks: one call, one round trip, one transaction.
--
-- Order in which rows are locked, everywhere: holds, generations, budgets (leaf to root), tasks,
-- steps, audit heads. All functions run as their caller, under row-level security, unless they
-- say security definer.

-- Errors: OV001 not admitted, OV002 already settled, OV003 not found, OV004 gap in the journal.

-- Appends one event under the task's own counter and wakes the listeners. The counter moves only
-- when the row is really new, so there are neither gaps nor repeats.
create function push_event(
    p_organisation uuid, p_task uuid, p_step int, p_type text, p_payload jsonb, p_dedupe text
) returns bigint
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    number bigint;
begin
    select t.next_event into number from tasks t
     where t.organisation_id = p_organisation and t.task_id = p_task
       for no key update;
    if not found then
        raise exception 'no such task' using errcode = 'OV003';
    end if;
    insert into task_events (organisation_id, task_id, seq, step, type, payload, dedupe)
    values (p_organisation, p_task, number, p_step, p_type, p_payload, p_dedupe)
    on conflict (organisation_id, task_id, dedupe) do nothing;
    if not found then
        return null;
    end if;
    update tasks set next_event = number + 1
     where organisation_id = p_organisation and task_id = p_task;
    perform pg_notify('overline_task', p_task::text);
    return number;
end $$;
