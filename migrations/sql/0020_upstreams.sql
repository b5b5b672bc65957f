-- Engines that speak OpenAI's protocol: text goes in and comes out, and they count by themselves.

-- `secret` is the name of the key an upstream is asked with; the key itself is in no database.
alter table deployments
    add column secret text,
    add column options jsonb not null default '{}';
-- Tokens of thoughts; where there is no price of their own, they cost what all output does.
alter table prices
    add column reasoning_usd_per_million numeric(18, 9) check (reasoning_usd_per_million >= 0);

-- What an upstream is asked, as JSON text, and about how many tokens that is. Such a generation has
-- no token ids.
alter table generations
    add column request text,
    add column prompt_tokens int check (prompt_tokens >= 0);
alter table generation_attempts
    add column reasoning_tokens int not null default 0 check (reasoning_tokens >= 0);
alter table generation_attempts
    -- squawk-ignore ban-drop-constraint
    drop constraint generation_attempts_usage_source_check,
    -- squawk-ignore constraint-missing-not-valid
    add constraint generation_attempts_usage_source_check
        check (usage_source in ('engine', 'journal', 'upstream', 'estimate'));
alter table model_calls
    add column reasoning_tokens int not null default 0
        check (reasoning_tokens between 0 and output_tokens),
    add column reasoning_usd_per_million numeric(18, 9);
alter table model_calls
    -- squawk-ignore ban-drop-constraint
    drop constraint model_calls_usage_source_check,
    -- squawk-ignore constraint-missing-not-valid
    add constraint model_calls_usage_source_check
        check (usage_source in ('engine', 'journal', 'cache', 'upstream', 'estimate'));

-- Tokens that a text is likely to be: four letters of ASCII each, one for any other sign. The same
-- rule as `inference.upstream.estimate`.
create function likely_tokens(p_text text) returns int
    language sql immutable set search_path = pg_catalog, public, pg_temp as $$
    select (plain + 3) / 4 + length(p_text) - plain
      from (select length(regexp_replace(p_text, '[^\u0001-\u007f]', '', 'g')) as plain) counted
$$;

-- The same as `stage_prompt`, for text. Once an attempt has begun, the request stands.
create function stage_request(
    p_organisation uuid, p_generation_key text, p_call_key text, p_candidate int,
    p_workflow text, p_task uuid, p_step int, p_channel text, p_model text, p_model_version text,
    p_tokenizer_version text, p_deployment text, p_request text, p_prompt_tokens int,
    p_provenance jsonb
) returns void
    language sql set search_path = pg_catalog, public, pg_temp as $$
    select stage_prompt(p_organisation, p_generation_key, p_call_key, p_candidate, p_workflow,
        p_task, p_step, p_channel, p_model, p_model_version, p_tokenizer_version, p_deployment,
        '\x', p_provenance);
    update generations g set request = p_request, prompt_tokens = p_prompt_tokens
     where g.organisation_id = p_organisation and g.generation_key = p_generation_key
       and g.epoch = 0;
$$;

-- As before, but text without token ids counts by what it is likely to be.
create or replace function append_chunk(
    p_organisation uuid, p_generation_key text, p_epoch int, p_seq int, p_token_ids int4[],
    p_text text
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    g      record;
    number bigint;
begin
    select x.epoch, x.next_seq, x.state, x.workflow_id, x.task_id, x.request is not null as told
      into g from generations x
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
       set journaled_tokens = a.journaled_tokens
               + case when g.told then likely_tokens(p_text)
                      else coalesce(array_length(p_token_ids, 1), 0) end
     where a.organisation_id = p_organisation and a.generation_key = p_generation_key
       and a.epoch = p_epoch;
    perform pg_notify('overline_task', g.task_id::text);
    return true;
end $$;

-- squawk-ignore ban-drop-function
drop function resolve_attempt(uuid, text, int, text, text, text, int, int, int, text, float8,
                              float8, float8);
create function resolve_attempt(
    p_organisation uuid, p_generation_key text, p_epoch int, p_outcome text, p_cause text,
    p_error_code text, p_prompt int, p_cached int, p_completion int, p_source text,
    p_queue_ms float8, p_first_token_ms float8, p_duration_ms float8, p_reasoning int default 0
) returns boolean
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    update generation_attempts a
       set outcome = p_outcome, cause = p_cause, error_code = p_error_code,
           -- Never refuse a report over its figures: a count below what is already written down
           -- is raised to it, a cached part is never more than the whole.
           prompt_tokens = greatest(p_prompt, 0),
           cached_tokens = least(greatest(p_cached, 0), greatest(p_prompt, 0)),
           -- What the journal holds of an upstream's text is an estimate: its own word counts.
           completion_tokens = case when p_source = 'upstream' then greatest(p_completion, 0)
                                    else greatest(p_completion, a.journaled_tokens) end,
           reasoning_tokens = least(greatest(p_reasoning, 0), greatest(p_completion, 0)),
           usage_source = p_source, queue_ms = p_queue_ms, first_token_ms = p_first_token_ms,
           duration_ms = p_duration_ms, ended_at = clock_timestamp()
     where a.organisation_id = p_organisation and a.generation_key = p_generation_key
       and a.epoch = p_epoch and a.outcome is null;
    return found;
end $$;

-- squawk-ignore ban-drop-function
drop function finish_attempt(uuid, text, int, int, int4[], text, int, int, int, text, text, text,
                             float8, float8, float8, text, text, text);
create function finish_attempt(
    p_organisation uuid, p_generation_key text, p_epoch int, p_seq int, p_token_ids int4[],
    p_text text, p_prompt int, p_cached int, p_completion int, p_source text,
    p_finish_reason text, p_stop_reason text, p_queue_ms float8, p_first_token_ms float8,
    p_duration_ms float8, p_outcome text, p_error_code text, p_cause text,
    p_reasoning int default 0
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
        p_duration_ms, p_reasoning);
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

-- As before, with thoughts apart, and prices of wildcards.
create or replace function book_attempts(
    p_organisation uuid, p_call_key text, p_winner text, p_outcome text, p_trace text,
    out billed numeric, out waste numeric, out prompt bigint, out cached bigint,
    out output bigint, out unpriced bigint
)
    language sql set search_path = pg_catalog, public, pg_temp as $$
    with call as (
        select h.team_id, h.key_id, h.task_id, h.step, t.user_id, t.tags, t.workflow_id, t.run_id,
               t.route
          from holds h join tasks t using (organisation_id, task_id)
         where h.organisation_id = p_organisation and h.call_key = p_call_key
    ), attempts as (
        select a.*, g.candidate, g.model, g.model_version, g.deployment,
               g.request is not null as told,
               coalesce(g.generation_key = p_winner, false) as won,
               a.epoch > g.restarted_after as kept,
               coalesce(a.completion_tokens, a.journaled_tokens) as output,
               coalesce(a.prompt_tokens, case when a.journaled_tokens > 0
                   then coalesce(g.prompt_tokens, octet_length(g.prompt_ids) / 4)
                   else 0 end) as input,
               coalesce(a.cached_tokens, 0) as cached, a.reasoning_tokens as reasoning
          from generation_attempts a
          join generations g using (organisation_id, generation_key)
         where a.organisation_id = p_organisation and a.call_key = p_call_key
    ), useful as (
        select a.*,
               case when won and kept
                    then case when a.outcome = 'succeeded' then output
                              else least(journaled_tokens, output) end
                    else 0 end as useful_output,
               won and kept and a.epoch = min(a.epoch)
                   filter (where won and kept
                             and (journaled_tokens > 0 or a.outcome = 'succeeded'))
                   over (partition by a.generation_key) as carries_prompt
          from attempts a
    ), priced as (
        select u.*, p.input_usd_per_million as pi, p.cached_input_usd_per_million as pc,
               p.output_usd_per_million as po, p.reasoning_usd_per_million as pr,
               -- Thoughts are paid for when all that was written is, and else nobody saw them.
               case when useful_output = output then reasoning else 0 end as ur,
               case when coalesce(carries_prompt, false) then input - cached else 0 end as ui,
               case when coalesce(carries_prompt, false) then cached else 0 end as uc,
               round(coalesce(((input - cached) * p.input_usd_per_million
                   + cached * p.cached_input_usd_per_million
                   + (output - reasoning) * p.output_usd_per_million
                   + reasoning * coalesce(p.reasoning_usd_per_million, p.output_usd_per_million)
                   ) / 1000000, 0), 9) as cost
          from useful u
          -- A name that a wildcard stands for has the wildcard's price.
          left join deployments d on d.deployment = u.deployment
          left join lateral (
               select * from prices x
                where x.model = case when d.model like '%*' then d.model else u.model end
                  and x.valid_from <= u.started_at
                order by x.valid_from desc limit 1) p on true
    ), charged as (
        select c.*, least(c.cost, round(coalesce(
                   (ui * pi + uc * pc + (useful_output - ur) * po + ur * coalesce(pr, po))
                   / 1000000, 0), 9)) as billed
          from priced c
    ), booked as (
        insert into model_calls
            (organisation_id, started_at, ended_at, team_id, key_id, user_id, tags, task_id,
             workflow_id, run_id, trace_id, step, call_key, candidate, epoch, request_id,
             route, model, model_version, deployment, replica, outcome, waste_cause,
             error_code, uncached_input_tokens, cached_input_tokens, output_tokens,
             wasted_uncached_input_tokens, wasted_cached_input_tokens, wasted_output_tokens,
             reasoning_tokens, input_usd_per_million, cached_input_usd_per_million,
             output_usd_per_million, reasoning_usd_per_million, cost_usd, billed_usd, waste_usd,
             usage_source, queue_ms, first_token_ms, duration_ms)
        select p_organisation, c.started_at, coalesce(c.ended_at, clock_timestamp()),
               k.team_id, k.key_id, k.user_id, k.tags, k.task_id, k.workflow_id, k.run_id,
               coalesce(c.trace_id, p_trace), k.step, p_call_key, c.candidate, c.epoch,
               c.request_id, k.route, c.model, c.model_version, c.deployment, c.replica,
               coalesce(c.outcome, 'lost'),
               case when input + output = ui + uc + useful_output then null
                    when not won then coalesce(c.cause,
                        case when p_winner is not null then 'fallback'
                             when p_outcome = 'cancelled' then 'cancelled'
                             else 'failed' end)
                    when not kept then 'restarted'
                    when c.outcome is distinct from 'succeeded'
                        then coalesce(c.cause, case c.outcome when 'cancelled'
                            then 'cancelled' else 'interrupted' end)
                    else 'resumed' end,
               c.error_code, input - cached, cached, output,
               input - cached - ui, cached - uc, output - useful_output,
               reasoning, pi, pc, po, pr, cost, billed, cost - billed,
               coalesce(c.usage_source, case when told then 'estimate' else 'journal' end),
               c.queue_ms, c.first_token_ms,
               c.duration_ms
          from charged c cross join call k
        returning model_calls.billed_usd as billed, model_calls.waste_usd as waste
    )
    select (select coalesce(sum(billed), 0) from booked) as billed,
           (select coalesce(sum(waste), 0) from booked) as waste,
           coalesce(sum(ui + uc), 0) as prompt, coalesce(sum(uc), 0) as cached,
           coalesce(sum(useful_output), 0) as output,
           count(*) filter (where pi is null) as unpriced
      from charged
$$;

-- Housekeeping empties the prompts of tasks that ended long ago: what upstreams were asked, too. It
-- leaves an empty text, because they were asked something.
create function forget_requests() returns trigger
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    update generations g set request = ''
      from steps s
     where s.organisation_id = new.organisation_id and s.task_id = new.task_id
       and g.organisation_id = s.organisation_id and g.call_key = s.call_key and g.request <> '';
    return null;
end $$;
create trigger forget_requests after update of content_removed_at on tasks
    for each row when (new.content_removed_at is not null and old.content_removed_at is null)
    execute function forget_requests();
