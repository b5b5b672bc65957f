-- What reviews and cases found.
select 1;
