-- Several tool calls in one step.
select 1;
