"""A workflow terminated in Temporal leaves no hold, and no task that seems to run for ever."""

from __future__ import annotations

import os
import signal

from temporalio.client import Client

from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, say, words
from workflows.client import connect_kwargs

MODEL = "scripted"


async def test_terminated_in_temporal_is_closed_and_settled(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    before, booked = await books.metered(MODEL), books.booked(MODEL)
    task_id = await caller.submit(
        say(words(400), pace_ms=20), model=MODEL, sampling={"max_tokens": 4000}
    )
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 20)
        settings = stack.settings
        client = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
        await client.get_workflow_handle(f"task-{task_id}").terminate("by the test")
        last = await watcher.to_end(limit_s=60)
    assert last.type == "task.failed"
    task = await caller.task(task_id)
    assert task["status"] == "failed"
    assert task["error"]["code"] == "OVL-3003"
    books.assert_nothing_held(caller.organisation_id)
    # The engine had stopped by itself, and what it had made is in the ledger, as waste.
    assert await books.metered(MODEL) - before == books.booked(MODEL) - booked
    assert all(row["billed_usd"] == 0 for row in books.ledger(task_id))


async def test_cancelled_before_its_first_line_ran_is_cancelled(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    """Temporal ends such a workflow without running it, so it cannot close its own row."""
    settings = stack.settings
    client = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
    stopped = [stack.pid(part) for part in stack.state().parts if part.startswith("worker-")]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        task_id = await caller.submit(say("never said"), model=MODEL)
        await caller.cancel(task_id)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    ended = await caller.ended(task_id, limit_s=60)
    assert ended["status"] == "cancelled"
    assert books.ledger(task_id) == []
    books.assert_nothing_held(caller.organisation_id)
    description = await client.get_workflow_handle(f"task-{task_id}").describe()
    assert description.status is not None
    assert description.status.name == "CANCELED"
