"""A task too long for one run of its workflow: nothing shows where one run ends.

The Temporal of these tests suggests a new run after 150 events, which are some five calls.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client

from inference.client import TritonClient
from tests.chaos.victims import kill
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Watcher
from tests.integration.tasks.histories import assert_replays, runs_of, size_of
from tests.integration.tasks.long import MODEL, WINDOW_TOKENS, counted, counting
from workflows.client import connect_kwargs

STEPS = 30
WAIT_S = 120
ANSWER = "That was a long way."
EVENTS_OF_A_RUN = 150
MOST_BYTES = 2_000_000


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    """A stack whose Temporal suggests a new run early."""
    with tempfile.TemporaryDirectory(prefix="overline-") as folder:
        limit = f"limit.historyCount.suggestContinueAsNew={EVENTS_OF_A_RUN}"
        running = RunningStack(
            Path(folder) / "stack",
            {
                "OVERLINE_MODELS": MODEL,
                "OVERLINE_WORKERS": "2",
                "OVERLINE_TEMPORAL_DYNAMIC_CONFIG": limit,
            },
        )
        try:
            running.up()
            yield running
        finally:
            running.overline("down")


@pytest_asyncio.fixture
async def books(stack: RunningStack) -> AsyncIterator[Books]:
    """Ledger and meter of that stack."""
    async with TritonClient(stack.settings.triton_urls[0]) as engine:
        yield Books(stack.admin_url, engine)


async def _temporal(stack: RunningStack) -> Client:
    return await Client.connect(stack.settings.temporal_address, **connect_kwargs(stack.settings))


def _completed(seen: Watcher) -> int:
    return sum(event.type == "step.completed" for event in seen.events)


async def _in_another_run(client: Client, task_id: str) -> None:
    """Wait until the task goes on in a run that is not its first."""
    handle = client.get_workflow_handle(f"task-{task_id}")
    deadline = time.monotonic() + 60
    while True:
        description = await handle.describe()
        info = description.raw_description.workflow_execution_info
        if info.first_run_id != description.run_id:
            return
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


# A killed worker is waited for, twice, and each run is replayed.
@pytest.mark.timeout(300)
async def test_nothing_is_lost_or_done_twice_where_a_run_ends(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    before, booked = await books.metered(MODEL), books.booked(MODEL)
    task_id = await caller.submit(**counting(STEPS, ANSWER))
    async with caller.watch(task_id) as watcher:
        for number, cut in enumerate((8, 20)):
            await watcher.until(lambda seen, cut=cut: _completed(seen) >= cut, limit_s=WAIT_S)
            part = f"worker-{number % 2 + 1}"
            kill([stack.pid(part)])
        last = await watcher.to_end(limit_s=WAIT_S)
    assert last.type == "task.succeeded", last
    watcher.assert_once_and_in_order()
    assert "reset" not in [event.type for event in watcher.events]
    assert watcher.text(STEPS + 1) == ANSWER

    # Every call and every tool once; the task's row knows them all.
    rows = books.ledger(task_id)
    books.assert_no_call_ran_twice(rows)
    good = [row["step"] for row in rows if row["outcome"] == "succeeded"]
    assert good == list(range(1, STEPS + 2))
    steps = await caller.steps(task_id)
    assert [step["tool_result"] for step in steps[:STEPS]] == [
        counted(step) for step in range(1, STEPS + 1)
    ]
    task = await caller.task(task_id)
    assert task["answer"] == ANSWER
    assert task["completion_tokens"] == sum(
        row["output_tokens"] - row["wasted_output_tokens"] for row in rows
    )
    await books.assert_attempts_equal(rows)
    assert await books.metered(MODEL) - before == books.booked(MODEL) - booked
    books.assert_nothing_held(caller.organisation_id)

    # What is read and sent for a call does not grow with its task.
    sizes: list[dict[str, Any]] = books.rows(
        "select jsonb_array_length(s.provenance) as parts,"
        " octet_length(g.prompt_ids) / 4 as tokens from steps s"
        " join generations g using (organisation_id, task_id, step)"
        " where s.task_id = %s order by s.step",
        task_id,
    )
    assert max(row["tokens"] for row in sizes) <= WINDOW_TOKENS
    assert max(row["parts"] for row in sizes) <= WINDOW_TOKENS // 8 + 2
    kept = {part["source"] for part in steps[STEPS - 1]["provenance"] if part["kept"]}
    assert f"step {STEPS - 1}" in kept
    assert "step 1" not in kept

    # It went through several runs, each small, and each replays.
    runs = await runs_of(await _temporal(stack), f"task-{task_id}")
    assert len(runs) >= STEPS * 30 // EVENTS_OF_A_RUN // 2
    assert max(size_of(run) for run in runs) < MOST_BYTES
    await assert_replays(stack, [f"task-{task_id}"])


async def test_cancelled_in_a_later_run(stack: RunningStack, caller: Caller, books: Books) -> None:
    client = await _temporal(stack)
    task_id = await caller.submit(**counting(STEPS, ANSWER, pace_ms=1))
    async with caller.watch(task_id) as watcher:
        await _in_another_run(client, task_id)
        await caller.cancel(task_id)
        last = await watcher.to_end()
    assert last.type == "task.cancelled"
    watcher.assert_once_and_in_order()
    task = await caller.task(task_id)
    assert 0 < task["steps"] < STEPS
    books.assert_no_call_ran_twice(books.ledger(task_id))
    books.assert_nothing_held(caller.organisation_id)
    await assert_replays(stack, [f"task-{task_id}"])


async def test_a_wish_to_cancel_outlives_any_run_it_meets(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    """Some of these meet a run at its very end; a wish that its run swallowed would be lost."""
    tasks = [await caller.submit(**counting(40, ANSWER)) for _ in range(6)]
    for number, task_id in enumerate(tasks):
        await asyncio.sleep(0.05 * number)
        await caller.cancel(task_id)
    for task_id in tasks:
        ended = await caller.ended(task_id, limit_s=60)
        assert ended["status"] == "cancelled", ended
        assert ended["steps"] < 40
    books.assert_nothing_held(caller.organisation_id)
