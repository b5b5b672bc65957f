"""The tenant fence, as PostgreSQL's own catalogue describes it, and as it behaves."""

from __future__ import annotations

import pytest
from psycopg import errors as pg

from store.database import Database
from store.errors import NotFound, TenantUnbound
from store.tasks import get_task, list_tasks
from tests.integration.store.calls import file_task
from tests.integration.store.conftest import Server, Tenant

# Tables that are the same for everybody. A new table must either be named here or be fenced.
UNTENANTED = {
    "models",
    "deployments",
    "prices",
    "routes",
    "catalogue_state",
    "lane_processes",
    "alembic_version",
}
OUR_TABLES = """
    select c.oid, c.relname, c.relrowsecurity, c.relforcerowsecurity, c.relispartition,
           pg_get_userbyid(c.relowner) as owner,
           exists (select from pg_attribute a where a.attrelid = c.oid
                    and a.attname = 'organisation_id' and not a.attisdropped) as tenanted
      from pg_class c
     where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p')
"""


async def test_every_table_is_fenced_or_known_to_have_no_tenant(admin_db: Database) -> None:
    tables = await admin_db.run_untenanted(OUR_TABLES)
    assert {t["relname"] for t in tables if not t["tenanted"]} == UNTENANTED
    fenced = [t for t in tables if t["tenanted"]]
    assert len(fenced) > 20
    assert [t["relname"] for t in fenced if not t["relrowsecurity"]] == []
    assert [t["relname"] for t in fenced if not t["relforcerowsecurity"]] == []
    assert {t["owner"] for t in tables} == {"overline_owner"}


async def test_every_policy_checks_what_is_read_and_what_is_written(admin_db: Database) -> None:
    rows = await admin_db.run_untenanted(
        f"""
        select t.relname, count(p.oid) as policies,
               bool_and(p.polpermissive and p.polcmd = '*' and p.polroles = '{{0}}') as whole,
               array_agg(pg_get_expr(p.polqual, p.polrelid)) as reads,
               array_agg(pg_get_expr(p.polwithcheck, p.polrelid)) as writes
          from ({OUR_TABLES}) t left join pg_policy p on p.polrelid = t.oid
         where t.tenanted group by t.relname
        """
    )
    expected = "(organisation_id = (current_setting('overline.organisation_id'::text))::uuid)"
    for row in rows:
        assert row["policies"] == 1, row
        assert row["whole"], row
        assert row["reads"] == row["writes"] == [expected], row


async def test_processes_own_nothing_and_hold_no_dangerous_right(admin_db: Database) -> None:
    owned = await admin_db.run_untenanted(
        "select classid::regclass::text as kind, objid from pg_shdepend where deptype = 'o'"
        " and refobjid in ('overline_app'::regrole, 'overline_reader'::regrole)"
    )
    assert owned == []
    roles = await admin_db.run_untenanted(
        "select rolname, rolsuper, rolbypassrls, rolcreaterole, rolcanlogin from pg_roles"
        " where rolname like 'overline%' order by rolname"
    )
    assert [tuple(r.values()) for r in roles] == [
        ("overline_app", False, False, False, True),
        ("overline_definer", False, True, False, False),
        ("overline_owner", False, False, False, False),
        ("overline_reader", False, True, False, True),
    ]
    dangerous = await admin_db.run_untenanted(
        f"""
        select t.relname, a.privilege_type, a.grantee::regrole::text as grantee
          from ({OUR_TABLES}) t join pg_class c on c.oid = t.oid,
               aclexplode(c.relacl) a
         where a.grantee <> 'overline_owner'::regrole
           and (a.privilege_type in ('TRUNCATE', 'REFERENCES', 'TRIGGER', 'MAINTAIN')
                or t.relispartition or a.is_grantable or a.grantee = 0)
        """
    )
    assert dangerous == []
    writable = await admin_db.run_untenanted(
        "select relname from pg_class where relnamespace = 'public'::regnamespace"
        " and has_table_privilege('overline_reader', oid, 'insert, update, delete')"
        " and relkind in ('r', 'p', 'v')"
    )
    assert writable == []


async def test_the_ledger_can_only_grow(admin_db: Database) -> None:
    rows = await admin_db.run_untenanted(
        "select relname, has_table_privilege('overline_app', oid, 'update')"
        " or has_table_privilege('overline_app', oid, 'delete') as changeable"
        " from pg_class where relname in ('model_calls', 'audit_log', 'task_events',"
        " 'token_chunks', 'tool_calls') order by relname"
    )
    assert [r["relname"] for r in rows if r["changeable"]] == []
    assert len(rows) == 5


async def test_unique_and_foreign_keys_start_with_the_tenant(admin_db: Database) -> None:
    stray_indexes = await admin_db.run_untenanted(
        f"""
        select i.indexrelid::regclass::text as name
          from ({OUR_TABLES}) t join pg_index i on i.indrelid = t.oid
         where t.tenanted and i.indisunique and not exists (
               select from pg_attribute a where a.attrelid = t.oid and a.attnum = i.indkey[0]
                  and a.attname = 'organisation_id')
        """
    )
    assert stray_indexes == []
    stray_keys = await admin_db.run_untenanted(
        f"""
        select k.conname from ({OUR_TABLES}) t join pg_constraint k on k.conrelid = t.oid
         where t.tenanted and k.contype = 'f' and not exists (
               select from pg_attribute a where a.attrelid = t.oid and a.attnum = k.conkey[1]
                  and a.attname = 'organisation_id')
        """
    )
    assert stray_keys == []


async def test_views_look_with_the_eyes_of_whoever_looks(admin_db: Database) -> None:
    views = await admin_db.run_untenanted(
        "select relname, reloptions from pg_class"
        " where relnamespace = 'public'::regnamespace and relkind in ('v', 'm')"
    )
    assert len(views) >= 10
    for view in views:
        assert "security_invoker=true" in (view["reloptions"] or []), view


async def test_functions_pin_where_they_look_for_names(admin_db: Database) -> None:
    functions = await admin_db.run_untenanted(
        "select p.proname, p.prosecdef, p.proconfig, pg_get_userbyid(p.proowner) as owner,"
        " has_function_privilege('public', p.oid, 'execute') as for_all"
        " from pg_proc p where p.pronamespace = 'public'::regnamespace and not exists ("
        "   select from pg_depend d where d.objid = p.oid and d.deptype = 'e')"
    )
    for function in functions:
        assert any(
            setting.startswith("search_path=pg_catalog") for setting in function["proconfig"] or []
        ), function
    definers = {f["proname"]: f for f in functions if f["prosecdef"]}
    assert {name: f["owner"] for name, f in definers.items()} == {
        "authenticate": "overline_definer",
        "unstarted_tasks": "overline_definer",
        "unsent_messages": "overline_definer",
        "untold_decisions": "overline_definer",
        "unsent_sessions": "overline_definer",
        "unsent_wishes": "overline_definer",
        "orphaned_calls": "overline_definer",
        "unstarted_webhooks": "overline_definer",
        "organisation_of_workflow": "overline_definer",
        "remove_content": "overline_definer",
        "remove_blobs": "overline_definer",
        "forget_token_ids": "overline_definer",
        "workflows_with_old_payloads": "overline_definer",
        "end_payloads": "overline_definer",
        "calls_to_end": "overline_definer",
        "tasks_with_room": "overline_definer",
        "stranded_batches": "overline_definer",
        "remove_files": "overline_definer",
        "touch_keys": "overline_definer",
        "audit_append": "overline_definer",
        "ensure_partitions": "overline_owner",
    }
    assert [name for name, f in definers.items() if f["for_all"]] == []


async def test_a_tenant_table_without_a_tenant_is_an_error(db: Database, tenant: Tenant) -> None:
    await file_task(db, tenant)
    for table in ("tasks", "budgets", "model_calls", "task_events", "chunks", "spend_by_key"):
        with pytest.raises(TenantUnbound):
            await db.run_untenanted(f"select count(*) from {table}")
    # The same connection, after a bound transaction: the setting is '' now, not missing.
    one = await Database.open(db.url, max_size=1)
    try:
        await one.run(tenant.organisation_id, "select 1")
        with pytest.raises(TenantUnbound):
            await one.run_untenanted("select count(*) from tasks")
    finally:
        await one.close()


async def test_another_tenant_sees_and_changes_nothing(
    db: Database, tenant: Tenant, other_tenant: Tenant, admin_db: Database
) -> None:
    task_id = await file_task(db, tenant)
    stranger = other_tenant.organisation_id
    assert await get_task(db, stranger, task_id) is None
    assert (await list_tasks(db, stranger)).tasks == []
    tables = await admin_db.run_untenanted(OUR_TABLES)
    for table in tables:
        if table["tenanted"] and not table["relispartition"]:
            # Without naming the tenant: the second fence alone.
            seen = await db.run(
                stranger,
                f"select count(*) as n from {table['relname']} where organisation_id <> %s",
                (stranger,),
            )
            assert seen == [{"n": 0}], table["relname"]
    changed = await db.run(
        stranger, "update tasks set answer = 'x' where task_id = %s returning 1", (task_id,)
    )
    assert changed == []
    with pytest.raises(pg.InsufficientPrivilege):
        await db.run(
            stranger,
            "insert into task_events (organisation_id, task_id, seq, type, payload)"
            " values (%s, %s, 99, 'x', '{}')",
            (tenant.organisation_id, task_id),
        )


async def test_a_function_called_for_another_tenant_finds_nothing(
    db: Database, tenant: Tenant, other_tenant: Tenant
) -> None:
    task_id = await file_task(db, tenant)
    with pytest.raises(NotFound):
        await db.run(
            other_tenant.organisation_id,
            "select push_event(%s, %s, 1, 'x', '{}', null)",
            (tenant.organisation_id, task_id),
        )


async def test_partitions_cannot_be_reached_around_the_fence(
    db: Database, tenant: Tenant, admin_db: Database
) -> None:
    partitions = await admin_db.run_untenanted(
        "select inhrelid::regclass::text as name from pg_inherits"
        " where inhparent = 'model_calls'::regclass"
    )
    assert len(partitions) >= 13
    for partition in partitions:
        with pytest.raises(pg.InsufficientPrivilege):
            await db.run(tenant.organisation_id, f"select count(*) from {partition['name']}")


async def test_people_read_everything_but_secrets_and_change_nothing(
    server: Server, db: Database, tenant: Tenant
) -> None:
    await file_task(db, tenant)
    reader = await Database.open(server.reader_url, max_size=1)
    try:
        rows = await reader.run_untenanted("select count(*) as n from tasks")
        assert rows[0]["n"] >= 1
        await reader.run_untenanted("select * from spend_by_team_month")
        with pytest.raises(pg.InsufficientPrivilege):
            await reader.run_untenanted("select secret_hash from api_keys")
        with pytest.raises((pg.InsufficientPrivilege, pg.ReadOnlySqlTransaction)):
            await reader.run_untenanted("delete from tasks")
    finally:
        await reader.close()
