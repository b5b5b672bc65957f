"""`kill -9` of a worker in the middle of an upstream's answer, which nobody can continue."""

from __future__ import annotations

import asyncio
import time

from tests.chaos.victims import kill, pids_of
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, choose, say
from tests.integration.tasks.histories import assert_replays
from tests.upstream import Served

MODEL = "mock-killed"
# A token is four bytes, and so is a word of this.
PIECES = 150
PACE_MS = 12
# What it had sent, and the worker had not written to the journal: 100 ms of it, and a busy machine.
UNSEEN_AT_MOST = 60


async def test_it_is_made_again_and_what_was_sent_before_is_waste(
    caller: Caller, whole: RunningStack, books: Books, upstream: Served
) -> None:
    before, gone = upstream.stats.completion_tokens, upstream.stats.client_gone
    question = (
        "Kill it. "
        + choose({"tool": "calculator", "expression": "6*7"})
        + say("abc ", tokens=4 * PIECES, pace_ms=PACE_MS)
    )
    task_id = await caller.submit(
        question,
        model=MODEL,
        tools=[{"name": "calculator", "must_call": True}],
        sampling={"max_tokens": 2000},
    )
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text(2)) >= 4 * 40)
        kill(await pids_of("worker", whole, task_id))
        killed_at = time.monotonic()
        # The connection of a dead process ends, and with it the work for it.
        while upstream.stats.client_gone == gone:
            assert time.monotonic() < killed_at + 5
            await asyncio.sleep(0.01)
        last = await watcher.to_end(limit_s=90)

    assert last.type == "task.succeeded", last
    watcher.assert_once_and_in_order()
    assert [event.type for event in watcher.events].count("reset") == 1
    task = await caller.task(task_id)
    assert watcher.text(2) == task["answer"] == "abc " * PIECES

    rows = books.ledger(task_id)
    # The finished step was not made again.
    (first,) = [row for row in rows if row["step"] == 1]
    assert (first["outcome"], first["usage_source"]) == ("succeeded", "upstream")
    attempts = [row for row in rows if row["step"] == 2]
    lost, whole_one = attempts[0], attempts[-1]
    assert (lost["outcome"], lost["usage_source"]) == ("lost", "estimate")
    assert (lost["billed_usd"], lost["waste_cause"]) == (0, "restarted")
    assert lost["waste_usd"] > 0
    assert lost["output_tokens"] >= 40
    assert (whole_one["outcome"], whole_one["output_tokens"]) == ("succeeded", PIECES)
    assert whole_one["waste_usd"] == 0
    booked = sum(row["output_tokens"] for row in rows)
    sent = upstream.stats.completion_tokens - before
    assert sent - UNSEEN_AT_MOST <= booked <= sent
    books.assert_no_call_ran_twice(rows)
    books.assert_nothing_held(caller.organisation_id)
    await assert_replays(whole, [f"task-{task_id}"])
