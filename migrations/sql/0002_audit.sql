-- The audit chain of one organisation. Definer: the processes may append, and nothing else.
-- The tenant comes from the transaction, not from an argument.
create function audit_append(p_actor text, p_action text, p_subject text, p_detail jsonb)
    returns bigint
    language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    tenant uuid := current_setting('overline.organisation_id')::uuid;
    head   record;
    moment timestamptz := clock_timestamp();
    hash   bytea;
begin
    insert into audit_heads (organisation_id, seq, digest)
    values (tenant, 0, sha256(convert_to(tenant::text, 'UTF8')))
    on conflict do nothing;
    select h.seq, h.digest into head from audit_heads h
     where h.organisation_id = tenant for update;
    hash := audit_digest(head.digest, head.seq + 1, moment, p_actor, p_action, p_subject, p_detail);
    insert into audit_log
        (organisation_id, seq, at, actor, action, subject, detail, previous, digest)
    values (tenant, head.seq + 1, moment, p_actor, p_action, p_subject, p_detail, head.digest, hash);
    update audit_heads h set seq = head.seq + 1, digest = hash where h.organisation_id = tenant;
    return head.seq + 1;
end $$;

-- The bytes that are hashed: a JSON array, whose text PostgreSQL writes in one way only.
create function audit_digest(
    previous bytea, seq bigint, at timestamptz, actor text, action text, subject text, detail jsonb
) returns bytea
    language sql stable set search_path = pg_catalog, pg_temp as $$
    select sha256(previous || convert_to(jsonb_build_array(
        seq, to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'),
        actor, action, subject, detail)::text, 'UTF8'))
$$;

-- The first sequence number at which an organisation's chain is broken, or null. A tail cut off
-- shows because the head remembers how far the chain went.
create function audit_verify() returns bigint
    language sql stable set search_path = pg_catalog, public, pg_temp as $$
    with tenant as (select current_setting('overline.organisation_id')::uuid as id),
    chain as (
        select l.*, row_number() over (order by l.seq) as expected,
               lag(l.digest, 1, sha256(convert_to((select id from tenant)::text, 'UTF8')))
                   over (order by l.seq) as before
          from audit_log l where l.organisation_id = (select id from tenant)
    ),
    head as (
        select h.seq, h.digest from audit_heads h
         where h.organisation_id = (select id from tenant)
    )
    select min(bad) from (
        select least(seq, expected) as bad from chain
         where seq <> expected or previous <> before
            or digest <> audit_digest(previous, seq, at, actor, action, subject, detail)
        union all
        select (select coalesce(max(seq), 0) from chain) + 1 from head
         where head.seq > (select coalesce(max(seq), 0) from chain)
        union all
        select head.seq from head join chain on chain.seq = head.seq
         where chain.digest <> head.digest
        union all
        select min(seq) from chain where not exists (select from head)
    ) findings
$$;
