-- Calls that start without a workflow.
select 1;
