-- What large payloads are kept for, and until when.
select 1;
