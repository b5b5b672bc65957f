-- Policies, and what they decided.
select 1;
