-- Spend, for people with psql. security_invoker: whoever looks sees what their own role may see.
-- Amounts are USD; "unpriced" counts attempts of a model that had no price at the time.

create view spend_lines with (security_invoker = true) as
    select c.*, o.name as organisation, t.name as team, k.name as key_name
      from model_calls c
      join organisations o on o.organisation_id = c.organisation_id
      join teams t on t.organisation_id = c.organisation_id and t.team_id = c.team_id
      join (select organisation_id, key_id, name from api_keys) k
        on k.organisation_id = c.organisation_id and k.key_id = c.key_id;

create view spend_by_organisation_day with (security_invoker = true) as
    select organisation_id, organisation, (started_at at time zone 'UTC')::date as day,
           count(*) as attempts, count(distinct call_key) as calls,
           sum(uncached_input_tokens) as uncached_input_tokens,
           sum(cached_input_tokens) as cached_input_tokens, sum(output_tokens) as output_tokens,
           sum(billed_usd) as billed_usd, sum(waste_usd) as waste_usd, sum(saved_usd) as saved_usd
      from spend_lines group by organisation_id, organisation, day;

create view spend_by_team_month with (security_invoker = true) as
    select organisation_id, organisation, team_id, team,
           date_trunc('month', started_at at time zone 'UTC')::date as month,
           count(*) as attempts, count(distinct call_key) as calls,
           sum(uncached_input_tokens) as uncached_input_tokens,
           sum(cached_input_tokens) as cached_input_tokens, sum(output_tokens) as output_tokens,
           sum(billed_usd) as billed_usd, sum(waste_usd) as waste_usd, sum(saved_usd) as saved_usd
      from spend_lines group by organisation_id, organisation, team_id, team, month;

create view spend_by_key with (security_invoker = true) as
    select organisation_id, organisation, team_id, team, key_id, key_name,
           count(*) as attempts, count(distinct call_key) as calls,
           sum(uncached_input_tokens) as uncached_input_tokens,
           sum(cached_input_tokens) as cached_input_tokens, sum(output_tokens) as output_tokens,
           sum(billed_usd) as billed_usd, sum(waste_usd) as waste_usd, sum(saved_usd) as saved_usd
      from spend_lines group by organisation_id, organisation, team_id, team, key_id, key_name;

create view spend_by_user with (security_invoker = true) as
    select organisation_id, organisation, user_id,
           count(*) as attempts, count(distinct call_key) as calls,
           sum(uncached_input_tokens) as uncached_input_tokens,
           sum(cached_input_tokens) as cached_input_tokens, sum(output_tokens) as output_tokens,
           sum(billed_usd) as billed_usd, sum(waste_usd) as waste_usd, sum(saved_usd) as saved_usd
      from spend_lines group by organisation_id, organisation, user_id;

-- A call with two tags is counted under both: do not add the rows of different tags.
create view spend_by_tag with (security_invoker = true) as
    select organisation_id, organisation, tag.key as tag, tag.value as value,
           count(*) as attempts, count(distinct call_key) as calls,
           sum(uncached_input_tokens) as uncached_input_tokens,
           sum(cached_input_tokens) as cached_input_tokens, sum(output_tokens) as output_tokens,
           sum(billed_usd) as billed_usd, sum(waste_usd) as waste_usd, sum(saved_usd) as saved_usd
      from spend_lines, jsonb_each_text(tags) as tag (key, value)
     group by organisation_id, organisation, tag.key, tag.value;

create view spend_by_model with (security_invoker = true) as
    select organisation_id, organisation, model,
           count(*) as attempts, count(distinct call_key) as calls,
           sum(uncached_input_tokens) as uncached_input_tokens,
           sum(cached_input_tokens) as cached_input_tokens, sum(output_tokens) as output_tokens,
           sum(billed_usd) as billed_usd, sum(waste_usd) as waste_usd, sum(saved_usd) as saved_usd,
           count(*) filter (where input_usd_per_million is null and outcome <> 'cached')
               as unpriced,
           percentile_cont(0.5) within group (order by first_token_ms) as first_token_ms_p50,
           percentile_cont(0.95) within group (order by first_token_ms) as first_token_ms_p95
      from spend_lines group by organisation_id, organisation, model;

create view spend_by_task with (security_invoker = true) as
    select organisation_id, organisation, task_id, min(started_at) as started_at,
           count(*) as attempts, count(distinct call_key) as calls,
           sum(uncached_input_tokens) as uncached_input_tokens,
           sum(cached_input_tokens) as cached_input_tokens, sum(output_tokens) as output_tokens,
           sum(billed_usd) as billed_usd, sum(waste_usd) as waste_usd, sum(saved_usd) as saved_usd
      from spend_lines group by organisation_id, organisation, task_id;

create view spend_by_step with (security_invoker = true) as
    select organisation_id, organisation, task_id, step, min(model) as model,
           count(*) as attempts, count(distinct call_key) as calls,
           sum(uncached_input_tokens) as uncached_input_tokens,
           sum(cached_input_tokens) as cached_input_tokens, sum(output_tokens) as output_tokens,
           sum(billed_usd) as billed_usd, sum(waste_usd) as waste_usd, sum(saved_usd) as saved_usd
      from spend_lines group by organisation_id, organisation, task_id, step;

create view waste_by_cause with (security_invoker = true) as
    select organisation_id, organisation, (started_at at time zone 'UTC')::date as day,
           waste_cause, model, count(*) as attempts,
           sum(wasted_uncached_input_tokens) as wasted_uncached_input_tokens,
           sum(wasted_cached_input_tokens) as wasted_cached_input_tokens,
           sum(wasted_output_tokens) as wasted_output_tokens, sum(waste_usd) as waste_usd
      from spend_lines where waste_cause is not null
     group by organisation_id, organisation, day, waste_cause, model;

create view cache_savings with (security_invoker = true) as
    select organisation_id, organisation, (started_at at time zone 'UTC')::date as day, model,
           count(*) as hits, sum(saved_usd) as saved_usd
      from spend_lines where outcome = 'cached'
     group by organisation_id, organisation, day, model;

do $$
declare name regclass;
begin
    for name in select c.oid::regclass from pg_class c
                 where c.relkind = 'v' and c.relnamespace = 'public'::regnamespace
    loop
        execute format('grant select on %s to overline_app, overline_reader', name);
    end loop;
end $$;
