"""Tasks on file: listed, started, found when nobody started them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from uuid_utils.compat import uuid7

from store.database import Database
from store.errors import DatabaseBusy
from store.tasks import (
    discard_task,
    finish_task,
    get_task,
    list_steps,
    list_tasks,
    load_transcript,
    mark_started,
    unstarted_tasks,
)
from tests.integration.store.calls import admit_call, file_task
from tests.integration.store.conftest import Tenant


async def test_pages_show_every_task_once_newest_first(db: Database, tenant: Tenant) -> None:
    org = tenant.organisation_id
    filed = [await file_task(db, tenant) for _ in range(7)]
    seen, cursor = [], None
    while True:
        page = await list_tasks(db, org, cursor=cursor, limit=3)
        seen += [task.task_id for task in page.tasks]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == filed[::-1]
    await admit_call(db, tenant, filed[2])
    await finish_task(db, org, filed[4], status="failed", error={"code": "x"})
    await discard_task(db, org, filed[5])
    running = await list_tasks(db, org, status="running")
    assert [task.task_id for task in running.tasks] == [filed[2]]
    assert filed[5] not in [task.task_id for task in (await list_tasks(db, org)).tasks]
    assert await get_task(db, org, filed[5]) is None
    failed = await get_task(db, org, filed[4])
    assert failed is not None
    assert (failed.status, failed.error) == ("failed", {"code": "x"})
    assert failed.input == {"messages": [{"role": "user", "content": "hello"}]}
    assert (failed.user, failed.tags) == ("ada", {"project": "x"})
    assert await list_steps(db, org, uuid7()) == []


async def test_the_first_ending_stands(db: Database, tenant: Tenant) -> None:
    org = tenant.organisation_id
    task_id = await file_task(db, tenant)
    assert await finish_task(db, org, task_id, status="succeeded", answer="yes\x00")
    assert not await finish_task(db, org, task_id, status="failed", error={"code": "late"})
    task = await get_task(db, org, task_id)
    assert task is not None
    assert (task.status, task.answer, task.error) == ("succeeded", "yes\ufffd", None)


async def test_what_nobody_started_is_found_across_organisations(
    db: Database, tenant: Tenant, other_tenant: Tenant
) -> None:
    started, waiting, gone = [await file_task(db, tenant) for _ in range(3)]
    elsewhere = await file_task(db, other_tenant)
    await mark_started(db, tenant.organisation_id, started, "run-1")
    assert not await discard_task(db, tenant.organisation_id, started)
    assert await discard_task(db, tenant.organisation_id, gone)
    found = {t.task_id: t for t in await unstarted_tasks(db, older_than=timedelta(0), limit=1000)}
    assert {waiting, elsewhere} <= set(found)
    assert not {started, gone} & set(found)
    task = found[waiting]
    assert (task.organisation_id, task.team_id, task.key_id) == (
        tenant.organisation_id,
        tenant.team_id,
        tenant.key_id,
    )
    assert (task.route, task.user, task.tags) == ("default", "ada", {"project": "x"})
    assert task.input["messages"][0]["content"] == "hello"
    assert waiting not in {t.task_id for t in await unstarted_tasks(db)}


async def test_of_a_long_task_the_newest_steps_that_fit_are_read(
    db: Database, tenant: Tenant
) -> None:
    org = tenant.organisation_id
    task_id = await file_task(db, tenant)
    await db.run(
        org,
        "insert into steps (organisation_id, task_id, step, call_key, status, text, tool_call,"
        " tool_result) select %s, %s, n, %s || ':' || n, 'succeeded', '{}',"
        ' \'{"name": "t", "arguments": {}}\', \'a result\' from generate_series(1, 500) n',
        (org, task_id, str(task_id)),
    )
    whole = await load_transcript(db, org, task_id)
    assert [step.step for step in whole.steps] == list(range(1, 501))
    assert whole.omitted == 0
    # Not more rows than could fit, and no more text.
    few = await load_transcript(db, org, task_id, tokens=160)
    assert [step.step for step in few.steps] == list(range(480, 501))
    assert few.omitted == 479
    await db.run(
        org,
        "update steps set tool_result = repeat('r', 5000) where organisation_id = %s"
        " and task_id = %s and step = 490",
        (org, task_id),
    )
    fewer = await load_transcript(db, org, task_id, tokens=160)
    assert [step.step for step in fewer.steps] == list(range(491, 501))
    assert fewer.omitted == 490


async def test_a_call_admitted_while_its_task_ends_leaves_no_hold(
    db: Database, tenant: Tenant
) -> None:
    """In either order: the hold is found and settled, or the call is refused; never both missed."""
    org = tenant.organisation_id
    ended_first = await file_task(db, tenant)
    async with db.transaction(org) as ending:
        await ending.execute(
            "select finish_task(%s, %s, 'cancelled', null, null)", (org, ended_first)
        )
        admitting = asyncio.create_task(admit_call(db, tenant, ended_first))
        await asyncio.sleep(0.3)
        assert not admitting.done()
    refused = await asyncio.gather(admitting, return_exceptions=True)
    assert "task_cancelled" in repr(refused[0])
    admitted_first = await file_task(db, tenant)
    async with db.transaction(org) as admitting_now:
        await admitting_now.execute(
            "select admit(%s, %s, %s, %s, 1, %s, 0.001)",
            (org, tenant.team_id, tenant.key_id, admitted_first, f"{admitted_first}:1"),
        )
        finishing = asyncio.create_task(finish_task(db, org, admitted_first, status="cancelled"))
        await asyncio.sleep(0.3)
        assert not finishing.done()
    with pytest.raises(DatabaseBusy):
        await finishing
    assert await finish_task(db, org, admitted_first, status="cancelled")
    for task_id in (ended_first, admitted_first):
        task = await get_task(db, org, task_id)
        assert task is not None
        assert task.status == "cancelled"
    held = await db.run(
        org, "select 1 from holds where organisation_id = %s and state = 'held'", (org,)
    )
    assert held == []
