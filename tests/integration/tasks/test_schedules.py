"""Tasks that are asked again and again: in time, once each, and never past a budget or a key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from temporalio.client import Client

from tests.chaos.victims import kill, pids_of
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, say, words
from tests.integration.tasks.histories import assert_replays
from workflows.client import connect_kwargs

# Never by itself while the tests run; they have it due when they want.
NEVER = 300 * 86_400


async def _make(caller: Caller, task: dict[str, Any] | None = None, **fields: Any) -> str:
    body = {
        "name": f"s{uuid4().hex}",
        "task": {"input": say("As ever."), "model": "scripted", "cache": "off"} | (task or {}),
        **({"interval_seconds": NEVER} | fields),
    }
    made = (await caller.request("POST", "/v1/schedules", json=body)).json()
    return str(made["id"])


async def _read(caller: Caller, schedule_id: str) -> dict[str, Any]:
    read: dict[str, Any] = (await caller.request("GET", f"/v1/schedules/{schedule_id}")).json()
    return read


async def _fire(caller: Caller, schedule_id: str) -> None:
    await caller.request("POST", f"/v1/schedules/{schedule_id}/run")


async def _until(
    caller: Caller, schedule_id: str, holds: Callable[[dict[str, Any]], bool], limit_s: float = 40
) -> dict[str, Any]:
    deadline = time.monotonic() + limit_s
    while not holds(read := await _read(caller, schedule_id)):
        assert time.monotonic() < deadline, read
        await asyncio.sleep(0.1)
    return read


async def _delete(caller: Caller, schedule_id: str) -> None:
    await caller.request("DELETE", f"/v1/schedules/{schedule_id}")


async def test_a_task_comes_when_it_is_due_and_is_paid_for(
    caller: Caller, stack: RunningStack, books: Books
) -> None:
    schedule_id = await _make(caller, interval_seconds=10, time_zone="Europe/Berlin")
    try:
        first = await _read(caller, schedule_id)
        assert (first["state"], first["runs"]) == ("active", [])
        assert first["next_at"]
        read = await _until(caller, schedule_id, lambda told: len(told["runs"]) > 0)
    finally:
        await _delete(caller, schedule_id)
    (run, *_) = read["runs"]
    assert run["code"] is None
    task = await caller.ended(run["task_id"])
    assert (task["status"], task["answer"]) == ("succeeded", "As ever.")
    books.assert_nothing_held(caller.organisation_id)
    client = await Client.connect(stack.settings.temporal_address, **connect_kwargs(stack.settings))
    organisation = f'OverlineOrganisation = "{caller.organisation_id}"'
    found = client.list_workflows(f'WorkflowType = "ScheduledTask" AND {organisation}')
    ids = [workflow.id async for workflow in found]
    assert len(ids) >= 1
    await assert_replays(stack, [*ids, f"task-{run['task_id']}"])


@pytest.mark.parametrize(("overlap", "at_once"), [("skip", 1), ("allow", 2)])
async def test_a_schedule_that_overlaps_itself(caller: Caller, overlap: str, at_once: int) -> None:
    slow = {"input": say(words(60), pace_ms=10), "sampling": {"max_tokens": 2000}}
    schedule_id = await _make(caller, slow, overlap=overlap)
    try:
        await _fire(caller, schedule_id)
        await _until(caller, schedule_id, lambda told: len(told["runs"]) == 1)
        # Temporal names a time by its second.
        await asyncio.sleep(1.1)
        await _fire(caller, schedule_id)
        read = await _until(
            caller, schedule_id, lambda told: len(told["runs"]) + told["skipped"] == 2
        )
        assert (len(read["runs"]), read["skipped"]) == (at_once, 2 - at_once)
        for run in read["runs"]:
            assert (await caller.ended(run["task_id"]))["status"] == "succeeded"
    finally:
        await _delete(caller, schedule_id)


async def test_what_is_refused_is_seen(caller: Caller, stack: RunningStack) -> None:
    schedule_id = await _make(caller, {"limits": {"max_cost_usd": "0.000000001"}})
    await _fire(caller, schedule_id)
    read = await _until(caller, schedule_id, lambda told: len(told["runs"]) == 1)
    assert (read["runs"][0]["task_id"], read["runs"][0]["code"]) == (None, "OVL-3001")
    assert "budget" in read["runs"][0]["detail"]

    fine = await _make(caller)
    other = Caller.made(stack.admin_url, stack.state().urls["api"])
    with psycopg.connect(stack.admin_url) as connection:
        connection.execute(
            "update api_keys set enabled = false where key_id = %s", (caller.key_id,)
        )
    try:
        client = await Client.connect(
            stack.settings.temporal_address, **connect_kwargs(stack.settings)
        )
        name = f"schedule-{caller.organisation_id}-{fine}"
        await client.get_schedule_handle(name).trigger()
        deadline = time.monotonic() + 30
        while not (runs := _runs(stack, fine)):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
    finally:
        with psycopg.connect(stack.admin_url) as connection:
            connection.execute(
                "update api_keys set enabled = true where key_id = %s", (caller.key_id,)
            )
        await other.http.aclose()
    assert runs == [(None, "OVL-2002")]
    assert (await caller.request("GET", "/v1/tasks")).json()["tasks"] == []
    for each in (schedule_id, fine):
        await _delete(caller, each)


def _runs(stack: RunningStack, schedule_id: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(stack.admin_url) as connection:
        return connection.execute(
            "select task_id, code from schedule_runs where schedule_id = %s", (schedule_id,)
        ).fetchall()


async def test_a_killed_worker_costs_no_time_and_makes_no_second_task(
    caller: Caller, stack: RunningStack
) -> None:
    slow = {"input": say(words(60), pace_ms=10), "sampling": {"max_tokens": 2000}}
    schedule_id = await _make(caller, slow)
    try:
        await _fire(caller, schedule_id)
        read = await _until(caller, schedule_id, lambda told: len(told["runs"]) == 1)
        task_id = read["runs"][0]["task_id"]
        async with caller.watch(task_id) as watcher:
            await watcher.until(lambda seen: len(seen.text()) > 20)
            kill(await pids_of("worker", stack, task_id))
        task = await caller.ended(task_id)
        assert task["status"] == "succeeded"
        assert task["answer"] == words(60)
        assert len((await caller.request("GET", "/v1/tasks")).json()["tasks"]) == 1
        # It is over for the schedule as well: the next time is not skipped.
        await asyncio.sleep(1.1)
        await _fire(caller, schedule_id)
        read = await _until(caller, schedule_id, lambda told: len(told["runs"]) == 2)
        assert (await caller.ended(read["runs"][0]["task_id"]))["status"] == "succeeded"
    finally:
        await _delete(caller, schedule_id)


async def test_pause_resume_delete_and_nobody_elses(caller: Caller, stack: RunningStack) -> None:
    schedule_id = await _make(caller, paused=True, cron="0 9 * * 1-5", interval_seconds=None)
    path = f"/v1/schedules/{schedule_id}"
    assert (await _read(caller, schedule_id))["state"] == "paused"
    for verb, state in (("resume", "active"), ("pause", "paused"), ("pause", "paused")):
        assert (await caller.request("POST", f"{path}/{verb}")).json()["state"] == state
    other = Caller.made(stack.admin_url, stack.state().urls["api"])
    assert (await other.request("GET", "/v1/schedules")).json() == {"schedules": []}
    for method, where in (
        ("GET", path),
        ("DELETE", path),
        ("POST", f"{path}/pause"),
        ("POST", f"{path}/resume"),
        ("POST", f"{path}/run"),
    ):
        with pytest.raises(Refused) as refused:
            await other.request(method, where)
        assert refused.value.status == 404
    await other.http.aclose()
    listed = (await caller.request("GET", "/v1/schedules")).json()["schedules"]
    assert [each["id"] for each in listed] == [schedule_id]
    await _delete(caller, schedule_id)
    with pytest.raises(Refused) as gone:
        await _read(caller, schedule_id)
    assert gone.value.status == 404
    client = await Client.connect(stack.settings.temporal_address)
    assert schedule_id not in " ".join([each.id async for each in await client.list_schedules()])


@pytest.mark.parametrize(
    ("fields", "task", "status"),
    [
        ({"interval_seconds": None, "cron": "at noon"}, {}, 422),
        ({"interval_seconds": None, "cron": "0 9 * * *", "time_zone": "Middle/Earth"}, {}, 422),
        ({"interval_seconds": None}, {}, 422),
        ({"cron": "0 9 * * *"}, {}, 422),
        ({"interval_seconds": 9}, {}, 422),
        ({"overlap": "sometimes"}, {}, 422),
        ({"name": "no/slash"}, {}, 422),
        ({}, {"model": "no-such"}, 404),
        ({}, {"collections": ["no-such"]}, 404),
        ({}, {"input": " "}, 422),
        ({}, {"no_such_field": 1}, 422),
    ],
)
async def test_what_cannot_be_scheduled(
    caller: Caller, fields: dict[str, Any], task: dict[str, Any], status: int
) -> None:
    with pytest.raises(Refused) as refused:
        await _make(caller, task, **fields)
    assert refused.value.status == status
    assert (await caller.request("GET", "/v1/schedules")).json() == {"schedules": []}


async def test_a_name_is_used_once(caller: Caller) -> None:
    schedule_id = await _make(caller, name="daily", paused=True)
    with pytest.raises(Refused) as refused:
        await _make(caller, name="daily")
    assert refused.value.status == 409
    await _delete(caller, schedule_id)


def test_the_command_line_makes_lists_and_deletes(stack: RunningStack) -> None:
    name = f"cli-{uuid4().hex}"
    made = stack.json("schedule", "create", name, "x", "--cron", "0 9 * * *", "--paused")
    listed = stack.json("schedule", "list")["schedules"]
    assert [each["name"] for each in listed if each["id"] == made["id"]] == [name]
    assert name in stack.overline("schedule", "list").stdout
    assert stack.json("schedule", "delete", made["id"]) == {"id": made["id"]}
    assert stack.overline("schedule", "delete", made["id"]).returncode == 1
    assert stack.overline("schedule", "create", name, "x").returncode == 2
