-- Keeps one tool attempt; the first successful result becomes the step's.
create function record_tool_call(
    p_organisation uuid, p_task uuid, p_step int, p_call_id text, p_name text, p_attempt int,
    p_arguments jsonb, p_result text, p_ok boolean, p_error jsonb, p_started timestamptz,
    p_ended timestamptz
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    insert into tool_calls (organisation_id, task_id, call_id, attempt, step, name, arguments,
                            result_text, ok, error, started_at, ended_at)
    values (p_organisation, p_task, p_call_id, p_attempt, p_step, p_name, p_arguments, p_result,
            p_ok, p_error, p_started, p_ended)
    on conflict do nothing;
    if not found then
        return false;
    end if;
    perform push_event(p_organisation, p_task, p_step, 'tool.completed',
        jsonb_strip_nulls(jsonb_build_object('step', p_step, 'call_id', p_call_id,
            'name', p_name, 'attempt', p_attempt, 'ok', p_ok, 'error', p_error)),
        'tool.' || p_call_id || '.' || p_attempt);
    update steps s set tool_result = p_result
     where s.organisation_id = p_organisation and s.task_id = p_task and s.step = p_step
       and p_result is not null;
    return true;
end $$;

-- Makes a document's new version the one that is searched, drops the old one's chunks and tells
-- the caches: all at once, or not at all.
create function finish_document(
    p_organisation uuid, p_document uuid, p_version int, p_status text, p_error jsonb
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    d record;
begin
    select x.version, x.current_version, x.status, x.collection_id into d from documents x
     where x.organisation_id = p_organisation and x.document_id = p_document
       for no key update;
    if not found then
        raise exception 'no such document' using errcode = 'OV003';
    end if;
    if d.version <> p_version then
        return false;  -- a newer text arrived meanwhile: its own ingestion will finish it
    end if;
    if p_status <> 'ready' then
        update documents x set status = 'failed', error = p_error, updated_at = now()
         where x.organisation_id = p_organisation and x.document_id = p_document
           and x.current_version < p_version;
        return found;
    end if;
    if d.current_version = p_version then
        return true;
    end if;
    delete from chunks c
     where c.organisation_id = p_organisation and c.document_id = p_document
       and c.version <> p_version;
    update documents x
       set status = 'ready', error = null, current_version = p_version, updated_at = now(),
           chunk_count = (select count(*) from chunks c
                           where c.organisation_id = p_organisation
                             and c.document_id = p_document and c.version = p_version)
     where x.organisation_id = p_organisation and x.document_id = p_document;
    update collections c
       set revision = c.revision + 1, revised_in = pg_current_xact_id()
     where c.organisation_id = p_organisation and c.collection_id = d.collection_id;
    return true;
end $$;
