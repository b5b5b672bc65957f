"""What is cancelled or timed out does not go on beside what comes after it: seen at the engine."""

from __future__ import annotations

import time

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import UpdateActivityOptionsRequest
from temporalio.client import Client

from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, say, words
from tests.integration.tasks.histories import assert_replays
from workflows.client import connect_kwargs

MODEL = "scripted"
TEXT = words(120)
TRIES = 4
# The slot is free within a second; the slowest of some tries may have met a busy machine.
FREE_S = 1.0
FREE_BUSY_S = 8.0


async def _ended_at_engine(books: Books, request_id: str, *, limit_s: float) -> str:
    """Wait until the engine itself says that a request is over; returns how."""
    deadline = time.monotonic() + limit_s
    while True:
        reading = await books.engine.meter(MODEL, request_id)
        if reading is not None and reading.state != "running":
            return str(reading.state)
        assert time.monotonic() < deadline, reading


async def test_cancelling_a_long_generation_frees_the_engine_within_a_second(
    caller: Caller, books: Books
) -> None:
    took: list[float] = []
    for number in range(TRIES):
        task_id = await caller.submit(
            f"{number} " + say(words(400), pace_ms=20), model=MODEL, sampling={"max_tokens": 4000}
        )
        async with caller.watch(task_id) as watcher:
            await watcher.until(lambda seen: len(seen.text()) >= 20)
            asked = time.monotonic()
            await caller.cancel(task_id)
            how = await _ended_at_engine(books, f"{task_id}:1#0@1", limit_s=FREE_BUSY_S)
            took.append(time.monotonic() - asked)
            assert how == "cancelled"
            assert (await watcher.to_end()).type == "task.cancelled"
    assert min(took) < FREE_S, took
    books.assert_nothing_held(caller.organisation_id)


async def test_an_attempt_over_its_time_limit_is_stopped_and_cannot_write_any_more(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    """Its worker is well and so is its engine: without a fence both attempts would write."""
    client = await Client.connect(stack.settings.temporal_address, **connect_kwargs(stack.settings))
    before, booked = await books.metered(MODEL), books.booked(MODEL)
    task_id = await caller.submit(
        f"{time.monotonic_ns()} " + say(TEXT, pace_ms=15),
        model=MODEL,
        sampling={"max_tokens": 2000},
    )
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text()) >= 60)
        # As if the limit of one attempt had been this short from the beginning.
        await client.workflow_service.update_activity_options(
            UpdateActivityOptionsRequest(
                namespace=client.namespace,
                execution=WorkflowExecution(workflow_id=f"task-{task_id}"),
                type="generation.generate",
                activity_options=ActivityOptions(start_to_close_timeout=Duration(seconds=1)),
                update_mask=FieldMask(paths=["start_to_close_timeout"]),
            )
        )
        how = await _ended_at_engine(books, f"{task_id}:1#0@1", limit_s=30)
        last = await watcher.to_end(limit_s=90)
    assert how == "cancelled"
    assert last.type == "task.succeeded", last
    watcher.assert_once_and_in_order()
    assert watcher.text() == TEXT
    rows = books.ledger(task_id)
    assert len(rows) >= 2
    assert [row["outcome"] for row in rows].count("succeeded") == 1
    useful = [row["output_tokens"] - row["wasted_output_tokens"] for row in rows]
    assert sum(useful) == len(TEXT) + 1
    await books.assert_attempts_equal(rows)
    assert await books.metered(MODEL) - before == books.booked(MODEL) - booked
    books.assert_no_call_ran_twice(rows)
    books.assert_nothing_held(caller.organisation_id)
    await assert_replays(stack, [f"task-{task_id}"])
