"""One call of a long task is killed half-way, and nothing of the others is done again."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from temporalio.client import Client

from tests.benchmarks.audit import calls
from tests.benchmarks.progress import say
from tests.chaos.victims import kill
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller
from tests.integration.tasks.long import counting

__all__ = ["one_call_killed"]

CALLS = 50
KILLED = 37
PACE_MS = 8.0


async def one_call_killed(stack: RunningStack, caller: Caller, books: Books) -> dict[str, Any]:
    """Kill the worker in the middle of call 37 of 50."""
    task_id = await caller.submit(**counting(CALLS - 1, "Fifty.", pace_ms=PACE_MS))
    say(f"call {KILLED} of {CALLS} will be killed")
    async with caller.watch(task_id) as watcher:
        await watcher.until(
            lambda seen: any(e.step == KILLED and e.type == "text" for e in seen.events),
            limit_s=300,
        )
        kill([await _worker_of(stack, task_id)])
        killed_at = time.monotonic()
        shown = len(watcher.events)
        await watcher.until(lambda seen: len(seen.events) > shown + 1, limit_s=120)
        back = time.monotonic() - killed_at
        last = await watcher.to_end(limit_s=300)
        watcher.assert_once_and_in_order()
    rows = calls(books, [task_id])
    return {
        "calls": CALLS,
        "killed": KILLED,
        "succeeded": last.type == "task.succeeded",
        "completed_calls_executed_again": sum(
            row["attempts"] > 1 for row in rows if row["step"] != KILLED
        ),
        "tokens_of_the_call": int(rows[KILLED - 1]["output_said"]),
        "tokens_generated_twice": int(sum(row["output_wasted"] for row in rows)),
        "seconds_to_progress": round(back, 2),
    }


async def _worker_of(stack: RunningStack, task_id: str) -> int:
    """Return the process that runs the task's activity; waits for one to run."""
    client = await Client.connect(stack.settings.temporal_address)
    handle = client.get_workflow_handle(f"task-{task_id}")
    while True:
        description = await handle.describe()
        for pending in description.raw_description.pending_activities:
            if pending.last_worker_identity:
                return int(pending.last_worker_identity.partition("@")[0])
        await asyncio.sleep(0.01)
