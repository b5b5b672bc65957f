-- Safety policies in agents' tasks.

-- Whoever files a call says, in `overline.policy`, by which version its texts were screened; the
-- request of a task says it itself. What another task files keeps the policy of that one. If
-- another version holds now, nothing is written. BEFORE, so that no text reaches a page of the
-- table that was not screened by what holds.
create or replace function refuse_unscreened() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if policy_in_force(new.organisation_id, new.team_id) <> coalesce(
        nullif(current_setting('overline.policy', true), ''),
        new.input #>> '{safety,version}', new.input #>> '{task,safety,version}', '0')::int
    then
        raise exception 'another safety policy holds by now' using errcode = 'OV011';
    end if;
    return new;
end $$;
drop trigger screened on tasks;
create trigger screened before insert on tasks for each row
    when (new.kind = 'call' or current_setting('overline.policy', true) <> ''
          or (new.kind in ('agent', 'map') and new.parent_task_id is null))
    execute function refuse_unscreened();

-- The same for what is said in a session. A store that says nothing screened nothing.
create function refuse_unscreened_message() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if policy_in_force(new.organisation_id, new.team_id)
        <> coalesce(nullif(current_setting('overline.policy', true), ''), '0')::int
    then
        raise exception 'another safety policy holds by now' using errcode = 'OV011';
    end if;
    return new;
end $$;
create trigger screened before insert on session_messages for each row
    execute function refuse_unscreened_message();

-- What screening has to say about a task: in the transaction that files it, so that it is filed
-- with it or not at all. What was refused, or repeats an earlier request, has no such task.
create function file_task_screening(
    p_organisation uuid, p_task uuid, p_decisions jsonb, p_sealed bytea, p_key_id text
) returns void
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    if not exists (select from tasks t
                    where t.organisation_id = p_organisation and t.task_id = p_task) then
        return;
    end if;
    if p_sealed is not null then
        perform keep_redactions(p_organisation, p_task, 0, p_sealed, p_key_id);
    end if;
    if p_decisions is not null then
        perform note_decisions(p_organisation, p_decisions);
    end if;
end $$;

-- The originals go when the rest of a task's content goes; those of a session with its last turn's.
create or replace function drop_redactions() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    delete from redactions r
     where r.organisation_id = new.organisation_id and r.task_id = new.task_id;
    if new.session_id is not null then
        delete from redactions r
         where r.organisation_id = new.organisation_id and r.task_id = new.session_id
           and not exists (select from tasks t
                            where t.organisation_id = new.organisation_id
                              and t.session_id = new.session_id and t.content_removed_at is null);
    end if;
    return null;
end $$;

-- Tells the text of a finished generation whose words were held back as a whole until a person
-- allowed them: one more chunk without tokens, once.
create function release_text(p_organisation uuid, p_generation_key text, p_text text) returns void
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    g      record;
    number bigint;
begin
    select x.epoch, x.next_seq, x.outcome, x.workflow_id, x.task_id, x.call_key into g
      from generations x
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key
       for no key update;
    if not found or g.outcome is null then
        raise exception 'no such generation' using errcode = 'OV003';
    end if;
    if p_text = '' or exists (
        select from token_chunks c
         where c.organisation_id = p_organisation and c.step_key = p_generation_key
           and c.epoch = g.epoch and c.text <> '')
    then
        return;
    end if;
    update tasks t set next_event = t.next_event + 1
     where t.organisation_id = p_organisation and t.task_id = g.task_id
    returning t.next_event - 1 into number;
    insert into token_chunks (organisation_id, workflow_id, step_key, seq, epoch, task_id,
                              event_seq, token_ids, text)
    values (p_organisation, g.workflow_id, p_generation_key, g.next_seq, g.epoch, g.task_id, number,
            '{}', p_text);
    update generations x set next_seq = g.next_seq + 1
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key;
    -- Its call was settled before people were asked.
    update steps s set text = p_text
     where s.organisation_id = p_organisation and s.task_id = g.task_id
       and s.call_key = g.call_key;
    perform pg_notify('overline_task', g.task_id::text);
end $$;

-- Ends a task with the answer of a step that was settled before a person let it pass, unless
-- something was said to the task meanwhile; tells whether it goes on. See `settle_answer`.
create function conclude_answer(
    p_organisation uuid, p_task uuid, p_step int, p_status text, p_error jsonb,
    p_unless_told boolean
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    said    text;
    goes_on boolean;
begin
    -- Whoever says something to it waits for us.
    perform from tasks t
      where t.organisation_id = p_organisation and t.task_id = p_task and t.finished_at is null
        for no key update;
    if not found then
        return false;
    end if;
    select x.text, x.answered into said, goes_on from steps x
     where x.organisation_id = p_organisation and x.task_id = p_task and x.step = p_step;
    if not goes_on and p_unless_told and exists (
        select from task_messages m
         where m.organisation_id = p_organisation and m.task_id = p_task and m.at_step is null)
    then
        goes_on := true;
        update steps x set answered = true
         where x.organisation_id = p_organisation and x.task_id = p_task and x.step = p_step;
    elsif not goes_on then
        perform finish_task(p_organisation, p_task, p_status,
                            case p_status when 'succeeded' then said end, p_error);
    end if;
    return goes_on;
end $$;

-- The ids of a screened generation say what its text no longer does: what was taken out of it, or
-- never passed. Once its call is settled nobody goes on from them; their number stays. Definer: the
-- processes only add to the journal.
create function forget_token_ids() returns trigger
    language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
begin
    -- Most calls of the fast lane are over before anything of them is in the journal.
    if exists (select from token_chunks c
                where c.organisation_id = new.organisation_id and c.step_key = new.generation_key
                  and c.token_ids <> '{}')
       and exists (select from tasks t
                    where t.organisation_id = new.organisation_id and t.task_id = new.task_id
                      and (t.input ? 'safety' or t.input ? 'policy'))
    then
        update token_chunks c set token_ids = array_fill(0, array[cardinality(c.token_ids)])
         where c.organisation_id = new.organisation_id and c.step_key = new.generation_key
           and c.token_ids <> '{}';
    end if;
    return null;
end $$;
create trigger forget_token_ids after update of state on generations for each row
    when (new.state = 'settled' and old.state <> 'settled') execute function forget_token_ids();
revoke execute on function forget_token_ids() from public;
grant update (token_ids) on token_chunks to overline_definer;
grant create on schema public to overline_definer;
alter function forget_token_ids() owner to overline_definer;
revoke create on schema public from overline_definer;
