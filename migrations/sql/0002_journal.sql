-- Keeps the assembled prompt of one candidate. Once an attempt has begun, the prompt stands.
create function stage_prompt(
    p_organisation uuid, p_generation_key text, p_call_key text, p_candidate int,
    p_workflow text, p_task uuid, p_step int, p_channel text, p_model text, p_model_version text,
    p_tokenizer_version text, p_deployment text, p_prompt_ids bytea, p_provenance jsonb
) returns void
    language sql set search_path = pg_catalog, public, pg_temp as $$
    insert into generations as g
        (organisation_id, generation_key, call_key, candidate, workflow_id, task_id, step, channel,
         model, model_version, tokenizer_version, deployment, prompt_ids, provenance)
    values (p_organisation, p_generation_key, p_call_key, p_candidate, p_workflow, p_task, p_step,
            p_channel, p_model, p_model_version, p_tokenizer_version, p_deployment, p_prompt_ids,
            p_provenance)
    on conflict (organisation_id, generation_key) do update
       set channel = excluded.channel, model = excluded.model,
           model_version = excluded.model_version,
           tokenizer_version = excluded.tokenizer_version, deployment = excluded.deployment,
           prompt_ids = excluded.prompt_ids, provenance = excluded.provenance
     where g.epoch = 0
$$;

-- Opens the next attempt of a generation, fences every earlier one, and returns what they left.
create function begin_attempt(
    p_organisation uuid, p_generation_key text, p_replica text, p_temporal_attempt int,
    p_trace text,
    out epoch int, out prompt_ids bytea, out generated_ids int4[], out generated_text text,
    out next_seq int, out finished jsonb, out unresolved jsonb, out channel text, out model text,
    out model_version text, out tokenizer_version text, out deployment text
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    g     record;
    state text;
begin
    select * into g from generations x
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key
       for no key update;
    if not found then
        raise exception 'no such generation' using errcode = 'OV003';
    end if;

    prompt_ids := g.prompt_ids;
    channel := g.channel;
    model := g.model;
    model_version := g.model_version;
    tokenizer_version := g.tokenizer_version;
    deployment := g.deployment;
    next_seq := g.next_seq;
    select coalesce(array_agg(i.id order by c.seq, i.n), '{}') into generated_ids
      from token_chunks c, unnest(c.token_ids) with ordinality as i (id, n)
     where c.organisation_id = p_organisation and c.step_key = p_generation_key
       and c.epoch > g.restarted_after;
    select coalesce(string_agg(c.text, '' order by c.seq), '') into generated_text
      from token_chunks c
     where c.organisation_id = p_organisation and c.step_key = p_generation_key
       and c.epoch > g.restarted_after;
    select coalesce(jsonb_agg(jsonb_build_object(
               'epoch', a.epoch, 'request_id', a.request_id, 'replica', a.replica,
               'journaled_tokens', a.journaled_tokens) order by a.epoch), '[]')
      into unresolved
      from generation_attempts a
     where a.organisation_id = p_organisation and a.generation_key = p_generation_key
       and a.outcome is null;

    if g.outcome is not null then
        -- Finished before (the worker died between the last token and its report).
        select jsonb_build_object(
                   'finish_reason', g.finish_reason, 'stop_reason', g.stop_reason,
                   'prompt_tokens', octet_length(g.prompt_ids) / 4,
                   'cached_tokens', coalesce((array_agg(a.cached_tokens order by a.epoch)
                       filter (where a.epoch > g.restarted_after
                                 and (a.journaled_tokens > 0 or a.outcome = 'succeeded')))[1], 0),
                   'completion_tokens', coalesce(sum(case when a.outcome = 'succeeded'
                       then a.completion_tokens else a.journaled_tokens end)
                       filter (where a.epoch > g.restarted_after), 0),
                   'queue_ms', (array_agg(a.queue_ms order by a.epoch desc))[1],
                   'first_token_ms', (array_agg(a.first_token_ms order by a.epoch desc))[1],
                   'duration_ms', (array_agg(a.duration_ms order by a.epoch desc))[1])
          into finished
          from generation_attempts a
         where a.organisation_id = p_organisation and a.generation_key = p_generation_key;
        epoch := g.epoch;
        return;
    end if;

    select h.state into state from holds h
     where h.organisation_id = p_organisation and h.call_key = g.call_key;
    if not found then
        raise exception 'the call was never admitted' using errcode = 'OV001';
    elsif state <> 'held' then
        raise exception 'the call is settled' using errcode = 'OV002';
    end if;

    epoch := g.epoch + 1;
    update generations x set epoch = g.epoch + 1, state = 'running'
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key;
    insert into generation_attempts
        (organisation_id, generation_key, epoch, call_key, request_id, replica, temporal_attempt,
         trace_id)
    values (p_organisation, p_generation_key, g.epoch + 1, g.call_key,
            p_generation_key || '@' || (g.epoch + 1), p_replica, p_temporal_attempt, p_trace);

    if g.epoch = 0 and g.candidate > 0 and exists (
        select from generations o
         where o.organisation_id = p_organisation and o.call_key = g.call_key
           and o.candidate < g.candidate and o.next_seq > 0)
    then
        -- Another model takes over after some text was already shown: readers start afresh.
        perform push_event(p_organisation, g.task_id, g.step, 'reset',
            jsonb_build_object('step', g.step, 'epoch', 1, 'candidate', g.candidate,
                               'reason', 'fallback'),
            'reset.' || p_generation_key);
    end if;
end $$;

-- Writes one chunk if this epoch is still the newest. Repeating a chunk is harmless.
create function append_chunk(
    p_organisation uuid, p_generation_key text, p_epoch int, p_seq int, p_token_ids int4[],
    p_text text
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    g      record;
    number bigint;
begin
    select x.epoch, x.next_seq, x.state, x.workflow_id, x.task_id into g from generations x
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key
       for no key update;
    if not found then
        raise exception 'no such generation' using errcode = 'OV003';
    end if;
    if g.epoch <> p_epoch or g.state <> 'running' then
        return false;
    end if;
    if p_seq < g.next_seq then
        return exists (select from token_chunks c
                        where c.organisation_id = p_organisation
                          and c.step_key = p_generation_key
                          and c.seq = p_seq and c.epoch = p_epoch);
    elsif p_seq > g.next_seq then
        raise exception 'chunk % offered, % expected', p_seq, g.next_seq using errcode = 'OV004';
    end if;
    update tasks t set next_event = t.next_event + 1
     where t.organisation_id = p_organisation and t.task_id = g.task_id
    returning t.next_event - 1 into number;
    insert into token_chunks (organisation_id, workflow_id, step_key, seq, epoch, task_id,
                              event_seq, token_ids, text)
    values (p_organisation, g.workflow_id, p_generation_key, p_seq, p_epoch, g.task_id, number,
            p_token_ids, p_text);
    update generations x set next_seq = p_seq + 1
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key;
    update generation_attempts a
       set journaled_tokens = a.journaled_tokens + coalesce(array_length(p_token_ids, 1), 0)
     where a.organisation_id = p_organisation and a.generation_key = p_generation_key
       and a.epoch = p_epoch;
    perform pg_notify('overline_task', g.task_id::text);
    return true;
end $$;

-- Closes one attempt with what the engine (or, failing that, the journal) says it used.
create function resolve_attempt(
    p_organisation uuid, p_generation_key text, p_epoch int, p_outcome text, p_cause text,
    p_error_code text, p_prompt int, p_cached int, p_completion int, p_source text,
    p_queue_ms float8, p_first_token_ms float8, p_duration_ms float8
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    update generation_attempts a
       set outcome = p_outcome, cause = p_cause, error_code = p_error_code,
           -- Never refuse a report over its figures: a count below what is already written down
           -- is raised to it, a cached part is never more than the whole.
           prompt_tokens = greatest(p_prompt, 0),
           cached_tokens = least(greatest(p_cached, 0), greatest(p_prompt, 0)),
           completion_tokens = greatest(p_completion, a.journaled_tokens),
           usage_source = p_source, queue_ms = p_queue_ms, first_token_ms = p_first_token_ms,
           duration_ms = p_duration_ms, ended_at = clock_timestamp()
     where a.organisation_id = p_organisation and a.generation_key = p_generation_key
       and a.epoch = p_epoch and a.outcome is null;
    return found;
end $$;

-- The last chunk and the end of an attempt, in one.
create function finish_attempt(
    p_organisation uuid, p_generation_key text, p_epoch int, p_seq int, p_token_ids int4[],
    p_text text, p_prompt int, p_cached int, p_completion int, p_source text,
    p_finish_reason text, p_stop_reason text, p_queue_ms float8, p_first_token_ms float8,
    p_duration_ms float8, p_outcome text, p_error_code text, p_cause text
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    g record;
begin
    select x.epoch, x.state, x.outcome into g from generations x
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key
       for no key update;
    if not found then
        raise exception 'no such generation' using errcode = 'OV003';
    end if;
    if g.epoch <> p_epoch then
        return false;
    end if;
    if g.state <> 'running' then
        -- A repeat of the report that was already taken down is confirmed, a late one is not.
        return exists (select from generation_attempts a
                        where a.organisation_id = p_organisation
                          and a.generation_key = p_generation_key
                          and a.epoch = p_epoch and a.outcome = p_outcome);
    end if;
    if p_text <> '' or coalesce(array_length(p_token_ids, 1), 0) > 0 then
        if not append_chunk(p_organisation, p_generation_key, p_epoch, p_seq, p_token_ids, p_text)
        then
            return false;
        end if;
    end if;
    perform resolve_attempt(p_organisation, p_generation_key, p_epoch, p_outcome, p_cause,
        p_error_code, p_prompt, p_cached, p_completion, p_source, p_queue_ms, p_first_token_ms,
        p_duration_ms);
    -- Only success ends a generation. After a failure, or when its worker was asked to stop, the
    -- next attempt goes on; a call that is really over is closed by its settlement.
    update generations x
       set state = 'finished',
           outcome = case p_outcome when 'succeeded' then p_outcome end,
           finish_reason = p_finish_reason, stop_reason = p_stop_reason,
           finished_at = case p_outcome when 'succeeded' then clock_timestamp() end
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key;
    return true;
end $$;

-- What was written before cannot be continued (other model, other grammar): begin anew, under an
-- epoch of its own, so that the engine is never asked twice under one request id. The earlier
-- tokens stay in the journal and become waste. No row: fenced.
create function restart_generation(
    p_organisation uuid, p_generation_key text, p_epoch int, p_reason text
) returns table (epoch int, prompt_ids bytea, generated_ids int4[], generated_text text,
                 next_seq int, finished jsonb, unresolved jsonb, channel text, model text,
                 model_version text, tokenizer_version text, deployment text)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    g record;
    a record;
begin
    select x.epoch, x.state, x.task_id, x.step into g from generations x
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key
       for no key update;
    if not found then
        raise exception 'no such generation' using errcode = 'OV003';
    end if;
    if g.epoch <> p_epoch or g.state <> 'running' then
        return;
    end if;
    select x.replica, x.temporal_attempt, x.trace_id into a from generation_attempts x
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key
       and x.epoch = p_epoch;
    perform resolve_attempt(p_organisation, p_generation_key, p_epoch, 'failed', p_reason,
                            p_reason, 0, 0, 0, 'engine', null, null, null);
    update generations x set restarted_after = p_epoch
     where x.organisation_id = p_organisation and x.generation_key = p_generation_key;
    perform push_event(p_organisation, g.task_id, g.step, 'reset',
        jsonb_build_object('step', g.step, 'epoch', p_epoch + 1, 'reason', p_reason),
        'reset.' || p_generation_key || '@' || p_epoch);
    return query select * from begin_attempt(p_organisation, p_generation_key, a.replica,
                                             a.temporal_attempt, a.trace_id);
end $$;
