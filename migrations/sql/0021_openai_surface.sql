-- What the OpenAI-compatible routes keep.
select 1;
