revoke execute on function audit_append(text, text, text, jsonb) from public;
grant execute on function authenticate(uuid, bytea), unstarted_tasks(interval, int),
    audit_append(text, text, text, jsonb) to overline_app;

-- Definer functions belong to the one role that may look past the fence.
grant create on schema public to overline_definer;
alter function authenticate(uuid, bytea) owner to overline_definer;
alter function unstarted_tasks(interval, int) owner to overline_definer;
alter function audit_append(text, text, text, jsonb) owner to overline_definer;
revoke create on schema public from overline_definer;
