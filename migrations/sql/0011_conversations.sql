-- Messages to a running task, and sessions.
select 1;
