"""What is kept no longer goes: all of it, once, and nothing else, whatever is killed meanwhile."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from temporalio.client import Client, WorkflowExecutionStatus
from uuid_utils.compat import uuid7

from store import blobs
from store.database import Database
from store.payloads import PayloadShelf
from tests.chaos.victims import kill, pids_of
from tests.integration.running import OVERLINE, RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, choose, say, words
from tests.integration.tasks.histories import assert_replays

MODEL = "scripted"
OLD = "now() - interval '31 days'"


def _change(stack: RunningStack, sql: str, *values: Any) -> None:
    with psycopg.connect(stack.admin_url) as connection:
        connection.execute(sql.encode(), values)


def _count(books: Books, table: str, task_id: str, condition: str = "true") -> int:
    (row,) = books.rows(
        f"select count(*) as n from {table} where task_id = %s and {condition}", UUID(task_id)
    )
    return int(row["n"])


async def _told(caller: Caller) -> str:
    question = choose({"tool": "calculator", "expression": "6*7"}) + say(words(30))
    task = await caller.answered(
        question,
        model=MODEL,
        cache="off",
        tools=[{"name": "calculator", "must_call": True}],
        sampling={"max_tokens": 500},
    )
    return str(task["id"])


async def test_what_streamed_of_an_old_task_goes_and_what_it_was_and_cost_stays(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    old, fresh = await _told(caller), await _told(caller)
    before = {"steps": await caller.steps(old), "task": await caller.task(old)}
    ledger = books.ledger(old)
    database = await Database.open(stack.settings.database_url.get_secret_value(), max_size=2)
    organisation = caller.organisation_id
    kept = {
        task_id: await blobs.put_for_task(
            database, organisation, UUID(task_id), uuid4().bytes, "text/plain"
        )
        for task_id in (old, fresh)
    }
    both = uuid4().bytes
    for task_id in (old, fresh):
        shared = await blobs.put_for_task(database, organisation, UUID(task_id), both, "text/plain")
    shelf = PayloadShelf(database, keep=timedelta(days=30))
    gone, there = f"task-{uuid7()}", f"task-{old}"
    payloads = {name: await shelf.put(name, uuid4().bytes) for name in (gone, there)}
    fresh_payload = await shelf.put(gone, uuid4().bytes)
    _change(stack, f"update tasks set finished_at = {OLD} where task_id = %s", UUID(old))
    hashes = [bytes.fromhex(sha) for sha in (*kept.values(), shared)]
    hashes += [bytes.fromhex(sha) for _, sha in payloads.values()]
    _change(stack, f"update blobs set keep_until = {OLD} where sha256 = any (%s)", hashes)

    chunks = _count(books, "token_chunks", old)
    events = _count(books, "task_events", old)
    assert chunks > 0
    dry = stack.json("housekeeping", "--dry-run")
    # What no task points to is known when the tasks' turn has been.
    expected = {"tasks": 1, "chunks": chunks, "events": events - 1, "prompts": 2, "payloads": 1}
    assert {name: dry[name] for name in expected} == expected
    assert dry["dry_run"] is True
    assert _count(books, "token_chunks", old) == chunks

    done = stack.json("housekeeping")
    assert {name: done[name] for name in expected} == expected
    assert done["blobs"] == 1
    assert done["bytes"] == 32
    assert _count(books, "token_chunks", old) == 0
    assert _count(books, "task_events", old) == 1
    assert _count(books, "generations", old, "octet_length(prompt_ids) > 0") == 0
    assert books.ledger(old) == ledger
    assert await caller.steps(old) == before["steps"]
    changed = {"finished_at": (await caller.task(old))["finished_at"]}
    assert await caller.task(old) == before["task"] | changed
    async with caller.watch(old) as watcher:
        last = await watcher.to_end()
    assert [event.type for event in watcher.events] == ["task.succeeded"]
    assert last.payload["answer"] == before["task"]["answer"]

    assert _count(books, "token_chunks", fresh) > 0
    assert _count(books, "generations", fresh, "octet_length(prompt_ids) > 0") == 2
    left = {bytes(row["sha256"]).hex() for row in books.rows("select sha256 from blobs")}
    assert kept[old] not in left
    assert payloads[gone][1] not in left
    assert {kept[fresh], shared, payloads[there][1], fresh_payload[1]} <= left
    (row,) = books.rows(
        "select keep_until > now() as later from blobs where sha256 = %s",
        bytes.fromhex(payloads[there][1]),
    )
    assert row["later"]
    with pytest.raises(Refused) as refused:
        await caller.request("GET", f"/v1/tasks/{old}/blobs/{kept[old]}")
    assert refused.value.status == 404

    again = stack.json("housekeeping")
    assert {name: again[name] for name in (*expected, "blobs")} == dict.fromkeys(
        (*expected, "blobs"), 0
    )
    assert stack.json("replay", old)["replays"]
    await database.close()


def _fill(stack: RunningStack, caller: Caller, tasks: int, events: int) -> list[UUID]:
    """File tasks that ended long ago, with events."""
    ids = [uuid7() for _ in range(tasks)]
    with psycopg.connect(stack.admin_url) as connection:
        connection.execute(
            "insert into tasks (organisation_id, task_id, team_id, key_id, workflow_id, run_id,"
            " request_digest, route, input, worst_case_usd, status, finished_at)"
            " select organisation_id, id, team_id, key_id, 'task-' || id, 'r', 'd', 'default',"
            " '{}', 1, 'succeeded', now() - interval '40 days'"
            " from api_keys, unnest(%s::uuid[]) id where key_id = %s",
            (ids, caller.key_id),
        )
        connection.execute(
            "insert into task_events (organisation_id, task_id, seq, type, payload, dedupe)"
            " select %s, id, n, 'x', %s, case when n = %s then 'task.finished' end"
            " from unnest(%s::uuid[]) id, generate_series(1, %s) n",
            (caller.organisation_id, json.dumps({"x": "y" * 200}), events, ids, events),
        )
    return ids


async def test_killed_in_the_middle_it_goes_on_and_ends(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    ids = _fill(stack, caller, tasks=400, events=60)

    def left() -> int:
        (row,) = books.rows(
            "select count(*) as n from tasks where task_id = any (%s)"
            " and content_removed_at is null",
            ids,
        )
        return int(row["n"])

    running = await asyncio.create_subprocess_exec(
        OVERLINE,
        "housekeeping",
        "--json",
        env=stack.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while left() == 400:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    kill(await pids_of("workers", stack, ""))
    rest = left()
    told, complaint = await running.communicate()
    assert running.returncode == 0, complaint
    assert left() == 0
    # A piece that was done and not told is not counted; none is counted twice.
    assert json.loads(told)["tasks"] <= 400
    assert rest > 0, "all was done before anything was killed"
    (row,) = books.rows(
        "select count(*) as n, bool_and(dedupe = 'task.finished') as last from task_events"
        " where task_id = any (%s)",
        ids,
    )
    assert (row["n"], row["last"]) == (400, True)


async def test_it_is_due_by_itself_and_does_not_overlap(stack: RunningStack) -> None:
    client = await Client.connect(stack.settings.temporal_address)
    schedule = client.get_schedule_handle("housekeeping")
    deadline = time.monotonic() + 60
    for times in (1, 2):
        # The second one is handed the first one's result, which it must be able to read.
        await schedule.trigger()
        ended: list[str] = []
        while len(ended) < times:
            assert time.monotonic() < deadline, ended
            await asyncio.sleep(0.2)
            found = (await schedule.describe()).info.recent_actions
            ids = [each.action.workflow_id for each in found]  # type: ignore[union-attr]
            ended = [
                workflow_id
                for workflow_id in ids
                if (await client.get_workflow_handle(workflow_id).describe()).status
                is WorkflowExecutionStatus.COMPLETED
            ]
    described = (await schedule.describe()).schedule
    assert described.policy.overlap.name == "SKIP"
    await assert_replays(stack, ended)


def test_made_again_it_is_the_same_and_stays_paused(stack: RunningStack) -> None:
    async def pause() -> None:
        client = await Client.connect(stack.settings.temporal_address)
        await client.get_schedule_handle("housekeeping").pause()

    async def state() -> bool:
        client = await Client.connect(stack.settings.temporal_address)
        described = await client.get_schedule_handle("housekeeping").describe()
        await client.get_schedule_handle("housekeeping").unpause()
        return described.schedule.state.paused

    asyncio.run(pause())
    stack.wait_until_restarted("api", stack.kill("api"))
    time.sleep(1)
    assert asyncio.run(state())
