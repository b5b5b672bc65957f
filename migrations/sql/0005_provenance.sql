-- Where each part of a prompt came from goes to the step's row when the prompt is staged, and no
-- longer through the history of the workflow: a long conversation has many parts, and every call
-- would carry them all, twice.
create or replace function stage_prompt(
    p_organisation uuid, p_generation_key text, p_call_key text, p_candidate int,
    p_workflow text, p_task uuid, p_step int, p_channel text, p_model text, p_model_version text,
    p_tokenizer_version text, p_deployment text, p_prompt_ids bytea, p_provenance jsonb
) returns void
    language sql set search_path = pg_catalog, public, pg_temp as $$
    with staged as (
        insert into generations as g
            (organisation_id, generation_key, call_key, candidate, workflow_id, task_id, step,
             channel, model, model_version, tokenizer_version, deployment, prompt_ids)
        values (p_organisation, p_generation_key, p_call_key, p_candidate, p_workflow, p_task,
                p_step, p_channel, p_model, p_model_version, p_tokenizer_version, p_deployment,
                p_prompt_ids)
        on conflict (organisation_id, generation_key) do update
           set channel = excluded.channel, model = excluded.model,
               model_version = excluded.model_version,
               tokenizer_version = excluded.tokenizer_version, deployment = excluded.deployment,
               prompt_ids = excluded.prompt_ids
         where g.epoch = 0
        returning 1
    )
    update steps s set provenance = p_provenance
     where s.organisation_id = p_organisation and s.task_id = p_task and s.step = p_step
       and p_provenance is not null and exists (select from staged)
$$;
