-- Books every attempt of a call in the ledger and adds up.
--
-- Billed are the useful tokens of the winning generation: the prompt once, as the first attempt
-- that produced anything read it, and each output token that reached the journal (all of them for
-- the attempt that finished). Everything else was paid for and thrown away: waste, with its cause,
-- in the ledger but on nobody's budget. An attempt of which nobody said how it ended is counted by
-- the journal.
create function book_attempts(
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
               coalesce(g.generation_key = p_winner, false) as won,
               a.epoch > g.restarted_after as kept,
               coalesce(a.completion_tokens, a.journaled_tokens) as output,
               coalesce(a.prompt_tokens, case when a.journaled_tokens > 0
                   then octet_length(g.prompt_ids) / 4 else 0 end) as input,
               coalesce(a.cached_tokens, 0) as cached
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
               p.output_usd_per_million as po,
               case when coalesce(carries_prompt, false) then input - cached else 0 end as ui,
               case when coalesce(carries_prompt, false) then cached else 0 end as uc,
               round(coalesce(((input - cached) * p.input_usd_per_million
                   + cached * p.cached_input_usd_per_million
                   + output * p.output_usd_per_million) / 1000000, 0), 9) as cost
          from useful u
          left join lateral (
               select * from prices x
                where x.model = u.model and x.valid_from <= u.started_at
                order by x.valid_from desc limit 1) p on true
    ), charged as (
        select c.*, least(c.cost, round(coalesce(
                   (ui * pi + uc * pc + useful_output * po) / 1000000, 0), 9)) as billed
          from priced c
    ), booked as (
        insert into model_calls
            (organisation_id, started_at, ended_at, team_id, key_id, user_id, tags, task_id,
             workflow_id, run_id, trace_id, step, call_key, candidate, epoch, request_id,
             route, model, model_version, deployment, replica, outcome, waste_cause,
             error_code, uncached_input_tokens, cached_input_tokens, output_tokens,
             wasted_uncached_input_tokens, wasted_cached_input_tokens, wasted_output_tokens,
             input_usd_per_million, cached_input_usd_per_million, output_usd_per_million,
             cost_usd, billed_usd, waste_usd, usage_source, queue_ms, first_token_ms,
             duration_ms)
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
               pi, pc, po, cost, billed, cost - billed,
               coalesce(c.usage_source, 'journal'), c.queue_ms, c.first_token_ms,
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

-- Ends a call: books its attempts, releases its hold, charges the budgets, keeps the answer, tells
-- the readers. Nothing here depends on amounts being small enough: what exceeds the hold goes to
-- overage.
create function settle(
    p_organisation uuid, p_task uuid, p_step int, p_call_key text, p_outcome text, p_winner text,
    p_decision jsonb, p_provenance jsonb, p_text text, p_tool_call jsonb, p_finish_reason text,
    p_cache_key text, p_cache_collections uuid[], p_cache_ttl_s float8, p_cache_hit uuid,
    p_finish_status text, p_finish_answer text, p_finish_error jsonb, p_trace text,
    out billed_usd numeric, out waste_usd numeric, out saved_usd numeric, out overage_usd numeric,
    out prompt_tokens int, out completion_tokens int, out cached_tokens int,
    out already_settled boolean
)
    language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    h           record;
    t           record;
    sums        record;
    win         record;
    hit_model   text;
    hit_channel text;
    hit_version text;
    hit_worth   numeric;
    -- Callers need not carry a long text through their own history: the journal has it, or the
    -- cache entry that answered.
    v_text      text := p_text;
    v_tool_call jsonb := p_tool_call;
    v_finish    text := p_finish_reason;
begin
    select * into h from holds x
     where x.organisation_id = p_organisation and x.call_key = p_call_key
       for no key update;
    if not found then
        raise exception 'the call was never admitted' using errcode = 'OV001';
    end if;
    if h.state = 'settled' then
        billed_usd := h.billed_usd;
        waste_usd := h.waste_usd;
        saved_usd := h.saved_usd;
        overage_usd := h.overage_usd;
        prompt_tokens := h.prompt_tokens;
        completion_tokens := h.completion_tokens;
        cached_tokens := h.cached_tokens;
        already_settled := true;
        return;
    end if;
    already_settled := false;
    saved_usd := 0;
    select s.user_id, s.tags, s.route, s.workflow_id, s.run_id into t from tasks s
     where s.organisation_id = p_organisation and s.task_id = h.task_id;

    -- From here no attempt of this call can write any more.
    update generations g set state = 'settled'
     where g.organisation_id = p_organisation and g.call_key = p_call_key;
    if p_finish_status is not null then
        -- Before the task row is locked, for the order of locks; this call is not among them.
        perform close_open_calls(p_organisation, h.task_id, p_finish_status, p_call_key);
    end if;

    select * into sums
      from book_attempts(p_organisation, p_call_key, p_winner, p_outcome, p_trace);
    billed_usd := sums.billed;
    waste_usd := sums.waste;
    prompt_tokens := sums.prompt;
    cached_tokens := sums.cached;
    completion_tokens := sums.output;

    if p_outcome = 'cached' then
        update cache_entries e set hits = e.hits + 1
         where e.organisation_id = p_organisation and e.cache_entry_id = p_cache_hit
        returning e.model, e.channel, e.model_version, e.billed_usd, coalesce(p_text, e.text),
                  coalesce(p_tool_call, e.tool_call), coalesce(p_finish_reason, e.finish_reason)
             into hit_model, hit_channel, hit_version, hit_worth, v_text, v_tool_call, v_finish;
        if found then
            saved_usd := hit_worth;
            insert into model_calls
                (organisation_id, started_at, ended_at, team_id, key_id, user_id, tags, task_id,
                 workflow_id, run_id, trace_id, step, call_key, candidate, epoch, route, model,
                 model_version, outcome, uncached_input_tokens, cached_input_tokens,
                 output_tokens, wasted_uncached_input_tokens, wasted_cached_input_tokens,
                 wasted_output_tokens, cost_usd, billed_usd, waste_usd, saved_usd, usage_source)
            values (p_organisation, h.created_at, clock_timestamp(), h.team_id, h.key_id,
                    t.user_id, t.tags, h.task_id, t.workflow_id, t.run_id, p_trace, h.step,
                    p_call_key, 0, 0, t.route, hit_model, hit_version, 'cached',
                    0, 0, 0, 0, 0, 0, 0, 0, 0, saved_usd, 'cache');
        end if;
    end if;

    select g.model, g.channel, g.model_version, g.restarted_after into win from generations g
     where g.organisation_id = p_organisation and g.generation_key = p_winner;
    if v_text is null and p_winner is not null then
        select string_agg(c.text, '' order by c.seq) into v_text from token_chunks c
         where c.organisation_id = p_organisation and c.step_key = p_winner
           and c.epoch > win.restarted_after;
    end if;

    if p_cache_key is not null and p_outcome = 'succeeded' and win.model is not null then
        -- Only if nothing the answer rests on changed since the call was admitted: every change
        -- must have been visible to the admission, so what was read is what is there now.
        insert into cache_entries as e
            (organisation_id, key, text, channel, tool_call, finish_reason, model, model_version,
             prompt_tokens, completion_tokens, billed_usd, revisions, catalogue_digest, task_id,
             expires_at)
        select p_organisation, p_cache_key, v_text, win.channel, v_tool_call, v_finish, win.model,
               win.model_version, settle.prompt_tokens, settle.completion_tokens,
               settle.billed_usd,
               coalesce((select jsonb_object_agg(c.collection_id, c.revision) from collections c
                          where c.organisation_id = p_organisation
                            and c.collection_id = any (p_cache_collections)), '{}'),
               s.digest, h.task_id, now() + make_interval(secs => p_cache_ttl_s)
          from catalogue_state s
         where pg_visible_in_snapshot(s.changed_in, h.admitted_under)
           and not exists (
               select from collections c
                where c.organisation_id = p_organisation
                  and c.collection_id = any (p_cache_collections)
                  and not pg_visible_in_snapshot(c.revised_in, h.admitted_under))
        on conflict (organisation_id, key) do update
           set text = excluded.text, channel = excluded.channel, tool_call = excluded.tool_call,
               finish_reason = excluded.finish_reason, model = excluded.model,
               model_version = excluded.model_version, prompt_tokens = excluded.prompt_tokens,
               completion_tokens = excluded.completion_tokens, billed_usd = excluded.billed_usd,
               revisions = excluded.revisions, catalogue_digest = excluded.catalogue_digest,
               task_id = excluded.task_id, expires_at = excluded.expires_at, created_at = now();
    end if;

    overage_usd := greatest(billed_usd - h.amount_usd, 0);
    perform from budgets g
      where g.organisation_id = p_organisation and g.budget_id = any (h.budget_ids)
      order by g.depth for no key update;
    update budgets g
       set held_usd = g.held_usd - h.amount_usd,
           spent_usd = g.spent_usd + (settle.billed_usd - settle.overage_usd),
           overage_usd = g.overage_usd + settle.overage_usd
     where g.organisation_id = p_organisation and g.budget_id = any (h.budget_ids);
    update holds x
       set state = 'settled', settled_at = now(), outcome = p_outcome,
           billed_usd = settle.billed_usd, waste_usd = settle.waste_usd,
           saved_usd = settle.saved_usd, overage_usd = settle.overage_usd,
           prompt_tokens = settle.prompt_tokens, completion_tokens = settle.completion_tokens,
           cached_tokens = settle.cached_tokens
     where x.organisation_id = p_organisation and x.hold_id = h.hold_id;

    update tasks s
       set prompt_tokens = s.prompt_tokens + settle.prompt_tokens,
           completion_tokens = s.completion_tokens + settle.completion_tokens,
           cached_tokens = s.cached_tokens + settle.cached_tokens,
           billed_usd = s.billed_usd + settle.billed_usd,
           waste_usd = s.waste_usd + settle.waste_usd,
           saved_usd = s.saved_usd + settle.saved_usd
     where s.organisation_id = p_organisation and s.task_id = h.task_id;
    update steps s
       set status = p_outcome, model = coalesce(win.model, hit_model, s.model),
           decision = coalesce(p_decision, s.decision),
           provenance = coalesce(p_provenance, s.provenance), text = v_text,
           tool_call = v_tool_call, finish_reason = v_finish,
           prompt_tokens = s.prompt_tokens + settle.prompt_tokens,
           completion_tokens = s.completion_tokens + settle.completion_tokens,
           cached_tokens = s.cached_tokens + settle.cached_tokens,
           billed_usd = s.billed_usd + settle.billed_usd,
           waste_usd = s.waste_usd + settle.waste_usd,
           saved_usd = s.saved_usd + settle.saved_usd, ended_at = now()
     where s.organisation_id = p_organisation and s.task_id = h.task_id and s.step = h.step;

    if p_outcome = 'cached' and v_text <> '' then
        -- Nothing was generated, so nothing was streamed: give readers the words.
        perform push_event(p_organisation, h.task_id, h.step, 'text',
            jsonb_build_object('channel', hit_channel, 'text', v_text, 'model', hit_model,
                               'cached', true),
            'text.' || p_call_key);
    end if;
    perform push_event(p_organisation, h.task_id, h.step, 'step.completed',
        jsonb_strip_nulls(jsonb_build_object(
            'step', h.step, 'outcome', p_outcome, 'model', coalesce(win.model, hit_model),
            'tool_call', v_tool_call, 'finish_reason', v_finish,
            'usage', jsonb_build_object('prompt_tokens', settle.prompt_tokens,
                'completion_tokens', settle.completion_tokens,
                'cached_tokens', settle.cached_tokens),
            'cost', jsonb_build_object('billed_usd', settle.billed_usd::text,
                'waste_usd', settle.waste_usd::text, 'saved_usd', settle.saved_usd::text))),
        'step.completed.' || p_call_key);
    if p_finish_status is not null then
        perform finish_task(p_organisation, h.task_id, p_finish_status,
            coalesce(p_finish_answer, case p_finish_status when 'succeeded' then v_text end),
            p_finish_error);
    end if;

    if overage_usd > 0 then
        perform audit_append('overline', 'settle.overage', p_call_key, jsonb_build_object(
            'hold_usd', h.amount_usd::text, 'billed_usd', settle.billed_usd::text,
            'overage_usd', settle.overage_usd::text));
    end if;
    if sums.unpriced > 0 then
        perform audit_append('overline', 'settle.unpriced', p_call_key,
                             jsonb_build_object('attempts', sums.unpriced));
    end if;
end $$;
