-- Requests, tokens and calls at once, exact across processes.
select 1;
