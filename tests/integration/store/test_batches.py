"""Files and batches: whole or not there, read by whose they are, ended once whoever is late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import errors as pg
from psycopg.rows import dict_row
from uuid_utils.compat import uuid7

from store import batch_lines, batches, files
from store.batch_lines import EndedLine, NewLine, TakenLine
from store.database import Database
from store.errors import Fenced
from store.identity import Principal
from tests.integration.store.conftest import Server, Tenant

DAY = timedelta(days=1)


async def begun(db: Database, tenant: Tenant, purpose: files.Purpose = "batch") -> UUID:
    file_id = uuid7()
    await files.begin_file(
        db,
        tenant.organisation_id,
        file_id=file_id,
        team_id=tenant.team_id,
        key_id=tenant.key_id,
        filename="a",
        purpose=purpose,
        keep=DAY,
    )
    return file_id


async def kept(db: Database, tenant: Tenant, *parts: bytes) -> UUID:
    file_id = await begun(db, tenant)
    for number, part in enumerate(parts):
        await files.add_part(db, tenant.organisation_id, file_id, number, part)
    size = sum(map(len, parts))
    await files.finish_file(db, tenant.organisation_id, file_id, size=size, lines=len(parts))
    return file_id


async def filed(
    db: Database, principal: Principal, input_file_id: UUID, **fields: Any
) -> batches.Filed | None:
    asked: dict[str, Any] = {
        "batch_id": uuid7(),
        "idempotency_key": None,
        "request_digest": "",
        "endpoint": "/v1/chat/completions",
        "input_file_id": input_file_id,
        "completion_window": "24h",
        "window": DAY,
        "metadata": {},
        "on_budget": "fail",
        "keep_output": DAY,
        "address": None,
    }
    return await batches.file_batch(db, principal, **(asked | fields))


async def submitted(db: Database, tenant: Tenant, count: int) -> UUID:
    """Return a batch of so many lines that has begun."""
    made = await filed(db, tenant.principal, await kept(db, tenant, b"line\n"))
    assert made is not None
    lines = [NewLine(number, f"r{number}", "", 0, 0, 4) for number in range(1, count + 1)]
    await batch_lines.file_lines(db, tenant.organisation_id, made.batch_id, lines)
    await batches.begin_batch(db, tenant.organisation_id, made.batch_id, count)
    return made.batch_id


async def taken(db: Database, tenant: Tenant, batch_id: UUID, slot: int, waits: str = "") -> Any:
    return await batch_lines.take_line(
        db, tenant.organisation_id, batch_id, deployment_class=waits, slot=slot
    )


async def content(db: Database, tenant: Tenant, file_id: UUID) -> bytes:
    return b"".join([p async for p in files.parts_of(db, tenant.organisation_id, file_id)])


@asynccontextmanager
async def batch_about_to_be_filed(
    server: Server, tenant: Tenant, file_id: UUID
) -> AsyncIterator[None]:
    """Hold an input as who files a batch of it does; the batch is on file at the end."""
    async with (
        await psycopg.AsyncConnection.connect(server.admin_url) as connection,
        connection.transaction(),
    ):
        await connection.execute("select from files where file_id = %s for share", (file_id,))
        yield
        await connection.execute(
            "insert into batches (organisation_id, batch_id, team_id, key_id, request_digest,"
            " endpoint, input_file_id, completion_window, keep_output, expires_at)"
            " values (%s, %s, %s, %s, '', '', %s, '', '1 day', now() + interval '1 day')",
            (tenant.organisation_id, uuid7(), tenant.team_id, tenant.key_id, file_id),
        )


async def waits_for_a_lock(server: Server, doing: asyncio.Task[Any]) -> None:
    """Return when it waits for somebody's lock, or is done."""
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        while not doing.done():
            row = connection.execute(
                "select exists (select from pg_locks where not granted)"
            ).fetchone()
            if row == (True,):
                return
            await asyncio.sleep(0.01)


async def test_an_input_is_not_removed_from_under_a_batch_that_is_just_filed(
    db: Database, server: Server, tenant: Tenant
) -> None:
    org = tenant.organisation_id
    file_id = await kept(db, tenant, b"{}\n")
    async with batch_about_to_be_filed(server, tenant, file_id):
        deleting = asyncio.create_task(files.delete_file(db, org, file_id))
        await waits_for_a_lock(server, deleting)
    assert await deleting is False
    assert await content(db, tenant, file_id) == b"{}\n"

    file_id = await kept(db, tenant, b"{}\n")
    await db.run(org, "update files set expires_at = now() where file_id = %s", (file_id,))
    async with batch_about_to_be_filed(server, tenant, file_id):
        removing = asyncio.create_task(files.remove_files(db, limit=100))
        await waits_for_a_lock(server, removing)
    await removing
    assert await content(db, tenant, file_id) == b"{}\n"
    await db.run(org, "update batches set ended_at = now() where input_file_id = %s", (file_id,))
    await files.remove_files(db, limit=100)
    assert await content(db, tenant, file_id) == b""


async def test_a_file_that_is_ready_is_not_written_again(db: Database, tenant: Tenant) -> None:
    org = tenant.organisation_id
    file_id = await kept(db, tenant, b"one\n", b"two\n")
    with pytest.raises(Fenced):
        await files.add_part(db, org, file_id, 1, b"")
    with pytest.raises(Fenced):
        await files.finish_file(db, org, file_id, size=4, lines=1)
    await files.discard_file(db, org, file_id)
    found = await files.get_file(db, org, file_id)
    assert found is not None
    assert (found.size, found.lines) == (8, 2)
    assert await content(db, tenant, file_id) == b"one\ntwo\n"
    other = await begun(db, tenant)
    await files.add_part(db, org, other, 0, b"x")
    await files.discard_file(db, org, other)
    for gone in (other, uuid7()):
        with pytest.raises(Fenced):
            await files.add_part(db, org, gone, 0, b"x")


async def test_who_wakes_up_after_a_batch_has_ended_changes_nothing(
    db: Database, server: Server, tenant: Tenant
) -> None:
    org = tenant.organisation_id
    batch_id = await submitted(db, tenant, 2)
    for _ in range(2):
        line = await taken(db, tenant, batch_id, 0)
        done = EndedLine(line.line, "answered", b"secret")
        await batch_lines.write_line(db, org, batch_id, 0, done)
    ending = await batches.begin_end(
        db, org, batch_id, errors=None, output_file_id=uuid7(), error_file_id=uuid7()
    )
    assert ending is not None
    await files.begin_file(
        db,
        org,
        file_id=ending.output_file_id,
        team_id=tenant.team_id,
        key_id=tenant.key_id,
        filename="out",
        purpose="batch_output",
        keep=DAY,
    )
    await files.add_part(db, org, ending.output_file_id, 0, b"a\nb\n")
    await files.finish_file(db, org, ending.output_file_id, size=4, lines=2, ready=False)
    # What is written is nobody's before the end, and nobody's to write after it.
    assert await files.get_file(db, org, ending.output_file_id) is None
    assert await batches.end_batch(db, org, batch_id, ending.outcome)
    with pytest.raises(Fenced):
        await files.add_part(db, org, ending.output_file_id, 0, b"a\n")
    with pytest.raises(Fenced):
        await files.finish_file(db, org, ending.output_file_id, size=2, lines=1, ready=False)
    await files.discard_file(db, org, ending.output_file_id)
    assert not await batches.end_batch(db, org, batch_id, "expired")
    found = await files.get_file(db, org, ending.output_file_id)
    assert found is not None
    assert (found.size, found.team_id) == (4, tenant.team_id)
    await batch_lines.file_lines(db, org, batch_id, [NewLine(1, "r1", "", 0, 0, 4)])
    await batches.begin_batch(db, org, batch_id, 7)
    batch = await batches.get_batch(db, org, batch_id)
    assert batch is not None
    assert (batch.status, batch.total, batch.completed) == ("completed", 2, 2)
    with psycopg.connect(server.admin_url, row_factory=dict_row) as connection:
        left = connection.execute("select from batch_lines where batch_id = %s", (batch_id,))
        assert left.fetchall() == []


async def test_a_batch_reads_only_what_its_own_team_has_sent(db: Database, tenant: Tenant) -> None:
    file_id = await kept(db, tenant, b"{}\n")
    stranger = Principal(tenant.organisation_id, uuid7(), tenant.key_id, ("tasks",))
    assert await filed(db, stranger, file_id) is None
    assert await filed(db, tenant.principal, file_id) is not None


async def test_readers_of_the_database_do_not_read_what_lines_were_answered(
    server: Server, db: Database, tenant: Tenant
) -> None:
    await submitted(db, tenant, 1)
    reader = await Database.open(server.reader_url, max_size=1, name="reader")
    try:
        (row,) = await reader.run(tenant.organisation_id, "select line, state from batch_lines")
        assert row == {"line": 1, "state": "waiting"}
        for secret in ("select result from batch_lines", "select data from file_parts"):
            with pytest.raises(pg.InsufficientPrivilege):
                await reader.run(tenant.organisation_id, secret)
    finally:
        await reader.close()


async def test_a_batch_whose_workflow_begins_anew_leaves_no_line_behind(
    db: Database, tenant: Tenant
) -> None:
    org = tenant.organisation_id
    batch_id = await submitted(db, tenant, 3)
    lost = await taken(db, tenant, batch_id, 9)
    assert isinstance(lost, TakenLine)
    done = await taken(db, tenant, batch_id, 8)
    await batch_lines.write_line(db, org, batch_id, 8, EndedLine(done.line, "answered", b"x"))
    # Fewer slots than before: none of them is the one that was at work.
    assert await batch_lines.resume_lines(db, org, batch_id) == {"": 2}
    again = await taken(db, tenant, batch_id, 0)
    assert (again.line, again.tries) == (lost.line, lost.tries)
    await batch_lines.write_line(db, org, batch_id, 9, EndedLine(lost.line, "answered", b"late"))
    await batch_lines.write_line(db, org, batch_id, 0, EndedLine(lost.line, "answered", b"it"))
    (first, _) = await batch_lines.results_of(db, org, batch_id, after=0, limit=10)
    assert first.result == b"it"
    assert await batch_lines.waiting_lines(db, org, batch_id) == {"": 1}
