-- Who is told of a task's end, and whether they were.
select 1;
