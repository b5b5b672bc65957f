"""`kill -9` of each process in the middle of a generation."""

from __future__ import annotations

import signal

import pytest

from tests.chaos.victims import VICTIMS, kill, pids_of
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, choose, say, words
from tests.integration.tasks.histories import assert_replays

MODEL = "scripted"
TEXT = words(80)
PACE_MS = 12
CUT = 160
# What may get lost with a process, and is made again: what had not reached the journal.
LOST_AT_MOST = 60
ANSWERED_BY_ENGINE = len(TEXT) + 1


@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_task_goes_on_at_the_token_it_had_reached(
    victim: str, caller: Caller, whole: RunningStack, books: Books
) -> None:
    before, booked = await books.metered(MODEL), books.booked(MODEL)
    question = (
        f"Kill the {victim}. "
        + choose({"tool": "calculator", "expression": "6*7"})
        + say(TEXT, pace_ms=PACE_MS)
    )
    task_id = await caller.submit(
        question,
        model=MODEL,
        tools=[{"name": "calculator", "must_call": True}],
        sampling={"max_tokens": 2000},
    )
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text(2)) >= CUT)
        kill(await pids_of(victim, whole, task_id))
        assert len(watcher.text(2)) < len(TEXT) // 2 + CUT
        last = await watcher.to_end(limit_s=60)

    # The caller: every token once, the answer of an uninterrupted task.
    assert last.type == "task.succeeded", last
    watcher.assert_once_and_in_order()
    assert "reset" not in [event.type for event in watcher.events]
    task = await caller.task(task_id)
    assert watcher.text(2) == task["answer"] == TEXT
    assert task["completion_tokens"] == sum(
        step["completion_tokens"] for step in await caller.steps(task_id)
    )

    # The completed step was not repeated, nor its tool.
    rows = books.ledger(task_id)
    (first,) = [row for row in rows if row["step"] == 1]
    assert (first["outcome"], first["epoch"]) == ("succeeded", 1)
    assert books.rows("select attempt from tool_calls where task_id = %s", task_id) == [
        {"attempt": 1}
    ]

    # The generation was continued, not begun again, and billed once.
    attempts = [row for row in rows if row["step"] == 2]
    useful = [row["output_tokens"] - row["wasted_output_tokens"] for row in attempts]
    assert sum(useful) == ANSWERED_BY_ENGINE
    assert [row["outcome"] for row in attempts].count("succeeded") == 1
    assert attempts[-1]["outcome"] == "succeeded"
    prompt = attempts[0]["uncached_input_tokens"] + attempts[0]["cached_input_tokens"]
    assert prompt > len(question)
    for number, row in enumerate(attempts):
        taken = row["uncached_input_tokens"] + row["cached_input_tokens"]
        # Or nothing at all, when there was no engine to take it.
        assert taken == prompt + sum(useful[:number]) or (taken, row["output_tokens"]) == (0, 0)
    billed = sum(
        row["uncached_input_tokens"]
        + row["cached_input_tokens"]
        - row["wasted_uncached_input_tokens"]
        - row["wasted_cached_input_tokens"]
        for row in attempts
    )
    assert billed == prompt
    assert sum(row["wasted_output_tokens"] for row in attempts) <= LOST_AT_MOST
    if victim in ("worker", "workers", "triton", "model process"):
        assert len(attempts) >= 2
        assert useful[0] >= CUT
        assert attempts[0]["waste_cause"] or attempts[0]["waste_usd"] == 0
    if victim == "api":
        assert len(attempts) == 1

    # The ledger is what the engine itself counted, in every bucket; no money is held.
    await books.assert_attempts_equal(rows)
    assert await books.metered(MODEL) - before == books.booked(MODEL) - booked
    books.assert_no_call_ran_twice(rows)
    books.assert_nothing_held(caller.organisation_id)
    await assert_replays(whole, [f"task-{task_id}"])


async def test_a_worker_that_hangs_is_replaced_and_cannot_write_any_more(
    caller: Caller, whole: RunningStack, books: Books
) -> None:
    """It is not dead: when it wakes up it still holds the stream, and half a chunk to write."""
    before, booked = await books.metered(MODEL), books.booked(MODEL)
    task_id = await caller.submit(
        "Hang. " + say(TEXT, pace_ms=PACE_MS), model=MODEL, sampling={"max_tokens": 2000}
    )
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text()) >= CUT)
        (hanging,) = await pids_of("worker", whole, task_id)
        kill([hanging], signal.SIGSTOP)
        shown = len(watcher.text())
        try:
            # Its successor has begun to write.
            await watcher.until(lambda seen: len(seen.text()) > shown + 20, limit_s=60)
        finally:
            kill([hanging], signal.SIGCONT)
        last = await watcher.to_end(limit_s=60)
    assert last.type == "task.succeeded"
    watcher.assert_once_and_in_order()
    assert watcher.text() == TEXT
    rows = books.ledger(task_id)
    assert [row["outcome"] for row in rows].count("succeeded") == 1
    assert len(rows) >= 2
    assert (
        sum(row["output_tokens"] - row["wasted_output_tokens"] for row in rows)
        == ANSWERED_BY_ENGINE
    )
    await books.assert_attempts_equal(rows)
    assert await books.metered(MODEL) - before == books.booked(MODEL) - booked
    books.assert_nothing_held(caller.organisation_id)
    await assert_replays(whole, [f"task-{task_id}"])
