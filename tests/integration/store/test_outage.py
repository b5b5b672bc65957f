"""Postgres goes away and comes back: said so at once, recovered by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import errors as pg

from store.bootstrap import current_revision
from store.database import Database
from store.errors import DatabaseBusy, DatabaseUnavailable
from store.events import EventHub, append_event, read_events
from tests.integration.store.calls import file_task
from tests.integration.store.conftest import Server, Tenant, make_tenant


@pytest.fixture(scope="module")
def fragile(short_folder: Path) -> Iterator[Server]:
    """A server of this module's own, to be killed."""
    running = Server(short_folder / "fragile")
    try:
        running.prepare()
        yield running
    finally:
        running.postgres.stop()


@pytest.fixture
async def fragile_db(fragile: Server) -> Iterator[Database]:  # type: ignore[misc]
    database = await Database.open(fragile.app_url, max_size=4, checkout_timeout_s=3)
    yield database
    await database.close()


async def test_a_killed_server_is_noticed_and_found_again(
    fragile: Server, fragile_db: Database
) -> None:
    db = fragile_db
    tenant = make_tenant(fragile)
    task_id = await file_task(db, tenant)
    hub = EventHub(fragile.app_url)
    try:
        async with hub.subscribe(task_id) as wake:
            assert await wake.wait(5)  # connected
            # Several idle connections, all of which die.
            await asyncio.gather(*(db.run(tenant.organisation_id, "select 1") for _ in range(4)))
            sleeping = asyncio.create_task(db.run(tenant.organisation_id, "select pg_sleep(20)"))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(fragile.postgres.kill)
            with pytest.raises(DatabaseUnavailable):
                await sleeping
            for _ in range(3):
                with pytest.raises(DatabaseUnavailable):
                    await db.run(tenant.organisation_id, "select 1")
            await asyncio.to_thread(fragile.postgres.start)
            # No request is spent on finding out that the old connections are dead.
            rows = await asyncio.gather(
                *(db.run(tenant.organisation_id, "select 1 as one") for _ in range(8))
            )
            assert rows == [[{"one": 1}]] * 8
            assert await wake.wait(5)  # reconnected, and told to look
            assert [e.type for e in await read_events(db, tenant.organisation_id, task_id)] == [
                "task.accepted"
            ]
            await append_event(db, tenant.organisation_id, task_id, None, "note", {})
            assert await wake.wait(5)
            assert not await wake.wait(0.05)
    finally:
        await hub.close()


async def test_an_idle_connection_that_was_ended_is_never_handed_out(
    fragile: Server, fragile_db: Database
) -> None:
    tenant = make_tenant(fragile)
    first = await fragile_db.run(tenant.organisation_id, "select pg_backend_pid() as pid")
    admin = await Database.open(fragile.admin_url, max_size=1)
    try:
        await admin.run_untenanted("select pg_terminate_backend(%s, 1000)", (first[0]["pid"],))
    finally:
        await admin.close()
    again = await fragile_db.run(tenant.organisation_id, "select pg_backend_pid() as pid")
    assert again != first


async def test_no_free_connection_is_said_in_time(fragile: Server) -> None:
    tenant = make_tenant(fragile)
    db = await Database.open(fragile.app_url, max_size=1, checkout_timeout_s=0.2)
    try:
        hog = asyncio.create_task(db.run(tenant.organisation_id, "select pg_sleep(0.6)"))
        await asyncio.sleep(0.05)
        with pytest.raises(DatabaseUnavailable):
            await db.run(tenant.organisation_id, "select 1")
        await hog
        assert await db.run(tenant.organisation_id, "select 1 as one") == [{"one": 1}]
    finally:
        await db.close()


async def test_a_cancelled_request_does_not_poison_its_connection(fragile: Server) -> None:
    tenant = make_tenant(fragile)
    db = await Database.open(fragile.app_url, max_size=1)
    try:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await db.run(tenant.organisation_id, "select pg_sleep(5)")
            assert await db.run(tenant.organisation_id, "select 2 as two") == [{"two": 2}]
    finally:
        await db.close()


async def test_waiting_too_long_for_a_lock_is_busy_not_an_incident(
    fragile: Server, fragile_db: Database
) -> None:
    tenant = make_tenant(fragile)
    lock = "select 1 from budgets where organisation_id = %s for update"
    async with fragile_db.transaction(tenant.organisation_id) as holder:
        await holder.execute(lock, (tenant.organisation_id,))
        with pytest.raises(DatabaseBusy):
            await fragile_db.run_many(
                tenant.organisation_id,
                [
                    ("select set_config('lock_timeout', '50ms', true)", ()),
                    (lock, (tenant.organisation_id,)),
                ],
            )


async def test_round_trips_are_counted(fragile: Server, fragile_db: Database) -> None:
    tenant = make_tenant(fragile)
    db = fragile_db
    before = db.round_trips
    await db.run(tenant.organisation_id, "select 1")
    await db.run_many(tenant.organisation_id, [("select 1", ()), ("select 2", ())])
    await db.run_untenanted("select 1")
    assert db.round_trips - before == 3
    async with db.transaction(tenant.organisation_id) as open_transaction:
        await open_transaction.execute("select 1")
        await open_transaction.execute("select 1")
    assert db.round_trips - before == 3 + 4


async def test_an_error_in_a_transaction_undoes_all_of_it(
    fragile: Server, fragile_db: Database
) -> None:
    tenant: Tenant = make_tenant(fragile)
    org = tenant.organisation_id
    insert = "insert into teams (organisation_id, name) values (%s, %s)"

    async def fail_halfway() -> None:
        async with fragile_db.transaction(org) as connection:
            await connection.execute(insert, (org, "undone"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_halfway()
    with pytest.raises(pg.DivisionByZero):
        await fragile_db.run_many(org, [(insert, (org, "undone")), ("select 1/0", ())])
    rows = await fragile_db.run(org, "select name from teams order by name")
    assert rows == [{"name": "team"}]


async def test_nobody_listens_on_a_closed_port(fragile: Server) -> None:
    url = "postgresql://overline_app:x@127.0.0.1:1/overline"
    with pytest.raises(DatabaseUnavailable):
        await Database.open(url)
    with pytest.raises(DatabaseUnavailable):
        await asyncio.to_thread(current_revision, url)
    lazy = await Database.open(url, min_size=0)
    with pytest.raises(DatabaseUnavailable):
        await lazy.run_untenanted("select 1")
    await lazy.close()
