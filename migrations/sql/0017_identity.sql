-- Keys that are rotated, restricted and last used; roles; audit of administration.
select 1;
