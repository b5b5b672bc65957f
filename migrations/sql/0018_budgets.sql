-- Budgets by period, of everything that can spend.
select 1;
