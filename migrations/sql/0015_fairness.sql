-- Whose turn it is at the engine.
select 1;
