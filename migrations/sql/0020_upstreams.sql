-- Engines that speak OpenAI's protocol.
select 1;
