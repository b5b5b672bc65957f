-- Tasks of tasks: sub-agents and maps.
select 1;
