"""One call of a long task is killed half-way, and nothing of the others is done again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from temporalio.client import Client

from tests.benchmarks.audit import calls
from tests.benchmarks.limits import Limit
from tests.benchmarks.progress import say
from tests.chaos.victims import kill
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Watcher
from tests.integration.tasks.long import counting

__all__ = ["one_call_killed"]

CALLS = 50
KILLED = 37
PACE_MS = 8.0


async def one_call_killed(
    stack: RunningStack, caller: Caller, books: Books, *, limit: Limit, found: dict[str, Any]
) -> None:
    """Kill the worker in the middle of call 37 of 50.

    Raises:
        Cut: The time was up on the way.
    """
    found |= {"calls": CALLS, "killed": KILLED}
    task_id = await caller.submit(**counting(CALLS - 1, "Fifty.", pace_ms=PACE_MS))
    async with caller.watch(task_id) as watcher:
        await _until(watcher, limit, lambda seen: _step(seen) >= KILLED)
        kill([await _worker_of(stack, task_id, limit)])
        killed_at = time.monotonic()
        shown = len(watcher.events)
        await _until(watcher, limit, lambda seen: len(seen.events) > shown + 1)
        found["seconds_to_progress"] = round(time.monotonic() - killed_at, 2)
        await _until(watcher, limit, lambda seen: seen.ended)
        last = watcher.events[-1]
        watcher.assert_once_and_in_order()
    rows = calls(books, [task_id])
    found |= {
        "succeeded": last.type == "task.succeeded",
        "completed_calls_executed_again": sum(
            row["attempts"] > 1 for row in rows if row["step"] != KILLED
        ),
        "tokens_of_the_call": int(rows[KILLED - 1]["output_said"]),
        "tokens_generated_twice": int(sum(row["output_wasted"] for row in rows)),
    }


def _step(seen: Watcher) -> int:
    """The newest step that has said something."""
    return max((event.step for event in seen.events if event.type == "text"), default=0)


async def _until(watcher: Watcher, limit: Limit, holds: Callable[[Watcher], bool]) -> None:
    while not holds(watcher):
        stands = f"call {_step(watcher)} of {CALLS}, {KILLED} will be killed"
        say(stands)
        limit.check(stands)
        await asyncio.sleep(0.01)


async def _worker_of(stack: RunningStack, task_id: str, limit: Limit) -> int:
    """Return the process that runs the task's activity; waits for one to run."""
    client = await Client.connect(stack.settings.temporal_address)
    handle = client.get_workflow_handle(f"task-{task_id}")
    while True:
        limit.check("no worker runs the call")
        description = await handle.describe()
        for pending in description.raw_description.pending_activities:
            if pending.last_worker_identity:
                return int(pending.last_worker_identity.partition("@")[0])
        await asyncio.sleep(0.01)
