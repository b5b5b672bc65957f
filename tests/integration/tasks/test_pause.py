"""Pause and resume: between steps, once each on the stream, whoever is killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, Watcher, choose, say

MODEL = "scripted"


def _counting(steps: int, pace_ms: int = 15) -> dict[str, Any]:
    calls = [
        choose({"tool": "calculator", "expression": f"1+{n}"}, pace_ms=pace_ms)
        for n in range(steps)
    ]
    return {
        "input": f"{time.monotonic_ns()} " + "".join(calls) + say("Counted."),
        "model": MODEL,
        "cache": "off",
        "tools": [{"name": "calculator", "max_calls": steps}],
        "limits": {"max_steps": steps + 2},
    }


def _finished(step: int) -> Callable[[Watcher], bool]:
    return lambda seen: any(e.type == "tool.completed" and e.step == step for e in seen.events)


def _saw(kind: str) -> Callable[[Watcher], bool]:
    return lambda seen: any(event.type == kind for event in seen.events)


async def _post(caller: Caller, task_id: str, verb: str) -> dict[str, Any]:
    read: dict[str, Any] = (await caller.request("POST", f"/v1/tasks/{task_id}/{verb}")).json()
    return read


async def _stands_still(caller: Caller, task_id: str, seconds: float = 1.0) -> int:
    """The step it waits after: nothing begins for a while."""
    deadline = time.monotonic() + 90
    while True:
        before = await caller.steps(task_id)
        await asyncio.sleep(seconds)
        after = await caller.steps(task_id)
        if len(before) == len(after) and after[-1]["finished_at"] is not None:
            return len(after)
        assert time.monotonic() < deadline


async def test_a_pause_takes_effect_between_steps_and_each_wish_is_told_once(
    caller: Caller, books: Books
) -> None:
    task_id = await caller.submit(**_counting(4))
    async with caller.watch(task_id) as watcher:
        await watcher.until(_finished(1))
        first = await _post(caller, task_id, "pause")
        again = await _post(caller, task_id, "pause")
        assert first == again
        assert first["status"] == "paused"
        done = await _stands_still(caller, task_id)
        task = await caller.task(task_id)
        assert (task["status"], task["paused_at"]) == ("paused", first["paused_at"])
        listed = (await caller.request("GET", "/v1/tasks?status=paused")).json()["tasks"]
        assert [each["id"] for each in listed] == [task_id]
        assert (await caller.request("GET", "/v1/tasks?status=running")).json()["tasks"] == []
        why = (await caller.request("GET", f"/v1/tasks/{task_id}/why")).json()
        assert (why["moving"], why["reasons"][0]["code"]) == (False, "paused")
        assert why["reasons"][0]["facts"]["step"] == done < 4
        resumed = await _post(caller, task_id, "resume")
        assert resumed == await _post(caller, task_id, "resume")
        assert (resumed["status"], resumed["paused_at"]) == ("running", None)
        assert (await watcher.to_end()).type == "task.succeeded"
    watcher.assert_once_and_in_order()
    steering = [e.type for e in watcher.events if e.type in ("task.paused", "task.resumed")]
    assert steering == ["task.paused", "task.resumed"]
    task = await caller.task(task_id)
    assert (task["status"], task["answer"], task["paused_at"]) == ("succeeded", "Counted.", None)
    books.assert_no_call_ran_twice(books.ledger(task_id))
    for verb in ("pause", "resume"):
        with pytest.raises(Refused) as refused:
            await _post(caller, task_id, verb)
        assert (refused.value.status, refused.value.problem["code"]) == (409, "OVL-1005")
    with pytest.raises(Refused, match="404"):
        await _post(caller, caller.organisation_id.hex, "pause")


async def test_resuming_a_task_that_was_never_paused_is_no_error(caller: Caller) -> None:
    task_id = await caller.submit(say("one moment", pace_ms=30), model=MODEL, cache="off")
    resumed = await _post(caller, task_id, "resume")
    assert resumed["paused_at"] is None
    assert (await caller.ended(task_id))["status"] == "succeeded"


async def test_a_paused_task_can_be_cancelled(caller: Caller, books: Books) -> None:
    task_id = await caller.submit(**_counting(4))
    async with caller.watch(task_id) as watcher:
        await watcher.until(_finished(1))
        await _post(caller, task_id, "pause")
        await _stands_still(caller, task_id, 0.5)
        await caller.cancel(task_id)
        assert (await watcher.to_end()).type == "task.cancelled"
    assert (await caller.task(task_id))["status"] == "cancelled"
    books.assert_nothing_held(caller.organisation_id)


async def test_a_pause_outlives_workers_and_the_api(
    caller: Caller, books: Books, stack: RunningStack
) -> None:
    task_id = await caller.submit(**_counting(6, pace_ms=25))
    async with caller.watch(task_id) as watcher:
        await watcher.until(_finished(1))
        await _post(caller, task_id, "pause")
        for part in ("worker-1", "worker-2", "api"):
            stack.kill(part)
        done = await _stands_still(caller, task_id)
        assert (await caller.task(task_id))["status"] == "paused"
        assert done < 6
        await _post(caller, task_id, "resume")
        stack.kill("api")
        await watcher.to_end()
    stack.wait_for(lambda state: state.all_ready)
    watcher.assert_once_and_in_order()
    assert (await caller.task(task_id))["answer"] == "Counted."
    books.assert_no_call_ran_twice(books.ledger(task_id))
    books.assert_nothing_held(caller.organisation_id)


async def test_a_wish_that_was_noted_and_not_sent_is_sent_by_the_sweeper(
    caller: Caller, books: Books
) -> None:
    """As if the API had died between the row and the signal."""
    task_id = await caller.submit(**_counting(40, pace_ms=10))
    async with caller.watch(task_id) as watcher:
        await watcher.until(_finished(1))
        books.rows(
            "select f.* from (select set_config('overline.organisation_id', %s, true)) b (o)"
            " cross join lateral steer_task(b.o::uuid, %s, true) f",
            str(caller.organisation_id),
            task_id,
        )
        await watcher.until(_saw("task.paused"))
        assert await _stands_still(caller, task_id, 2.0) < 40
        await _post(caller, task_id, "resume")
        await caller.cancel(task_id)
        await watcher.to_end()
    watcher.assert_once_and_in_order()
