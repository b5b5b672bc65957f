"""What goes wrong in a task: broken engines, cancellation, budgets. Typed, and paid for once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from decimal import Decimal

import psycopg
import pytest

from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Watcher, choose, say, words

MODEL = "scripted"
REAL = "smollm2-135m-instruct"
FALLBACK = "scripted-then-real"


@pytest.fixture(scope="module")
def fallback_route(stack: RunningStack) -> Iterator[str]:
    """A route whose first model is the scripted one, and whose second is a real one."""
    candidates = json.dumps([{"model": MODEL}, {"model": REAL}])
    with psycopg.connect(stack.admin_url, autocommit=True) as connection:
        connection.execute(
            "insert into routes (name, description, candidates) values (%s, 'of a test', %s)",
            (FALLBACK, candidates),
        )
        yield FALLBACK
        connection.execute("delete from routes where name = %s", (FALLBACK,))


async def _submit_when_known(caller: Caller, question: str, route: str) -> str:
    """Submit on a route that API and workers may not have read yet."""
    # Both re-read the catalogue after a few seconds at the latest.
    deadline = time.monotonic() + 20
    while True:
        try:
            task_id = await caller.submit(question, route=route, sampling={"max_tokens": 24})
        except Exception:
            if time.monotonic() > deadline:
                raise
            continue
        task = await caller.ended(task_id)
        if not (task["error"] and task["error"]["code"] == "OVL-1004"):
            return task_id
        assert time.monotonic() < deadline


async def test_when_the_engine_breaks_the_next_candidate_answers(
    caller: Caller, books: Books, fallback_route: str
) -> None:
    before = {model: await books.metered(model) for model in (MODEL, REAL)}
    booked = {model: books.booked(model) for model in (MODEL, REAL)}
    question = say(words(20), fail=10)
    task_id = await _submit_when_known(caller, question, fallback_route)
    task = await caller.task(task_id)
    assert task["status"] == "succeeded", task
    async with caller.watch(task_id) as watcher:
        await watcher.to_end()
    watcher.assert_once_and_in_order()
    # What the first had said is withdrawn before the second begins.
    (reset,) = [event for event in watcher.events if event.type == "reset"]
    assert reset.payload["reason"] == "fallback"
    withdrawn = [
        e.payload["text"] for e in watcher.events if e.seq < reset.seq and e.type == "text"
    ]
    assert "".join(withdrawn) == words(20)[:10]
    assert watcher.text() == task["answer"]

    (step,) = await caller.steps(task_id)
    assert step["model"] == REAL
    rows = books.ledger(task_id)
    failed = [row for row in rows if row["candidate"] == 0]
    (good,) = [row for row in rows if row["candidate"] == 1]
    assert good["outcome"] == "succeeded"
    assert {row["outcome"] for row in failed} <= {"failed", "lost"}
    assert sum(row["output_tokens"] for row in failed) == 10
    assert all(row["billed_usd"] == 0 for row in failed)
    assert sum(row["waste_usd"] for row in failed) > 0
    assert all(row["waste_cause"] for row in failed if row["waste_usd"])
    await books.assert_attempts_equal(rows)
    for model in (MODEL, REAL):
        assert await books.metered(model) - before[model] == books.booked(model) - booked[model]
    books.assert_no_call_ran_twice(rows)
    books.assert_nothing_held(caller.organisation_id)


async def test_a_request_the_engine_refuses_is_a_typed_error_and_costs_nothing(
    caller: Caller, books: Books
) -> None:
    task_id = await caller.submit(say("x", unheard_of=1), model=MODEL)
    task = await caller.ended(task_id)
    assert (task["status"], task["error"]["code"]) == ("failed", "OVL-1007")
    assert task["error"]["layer"] == "generation.generate"
    assert all(row["cost_usd"] == 0 for row in books.ledger(task_id))
    books.assert_nothing_held(caller.organisation_id)


async def test_a_broken_engine_is_tried_again_where_it_broke(caller: Caller, books: Books) -> None:
    text = words(20)
    task_id = await caller.submit(say(text, fail=30, once=f"f{time.monotonic_ns()}"), model=MODEL)
    async with caller.watch(task_id) as watcher:
        await watcher.to_end()
    assert watcher.text() == text
    assert "reset" not in [event.type for event in watcher.events]
    first, second = books.ledger(task_id)
    assert (first["output_tokens"], second["outcome"]) == (30, "succeeded")
    assert first["wasted_output_tokens"] == 0
    assert first["output_tokens"] + second["output_tokens"] == len(text) + 1
    await books.assert_attempts_equal([first, second])


async def test_cancellation_frees_the_engine_and_bills_what_was_shown(
    caller: Caller, books: Books
) -> None:
    before, booked = await books.metered(MODEL), books.booked(MODEL)
    task_id = await caller.submit(
        say(words(200), pace_ms=20), model=MODEL, sampling={"max_tokens": 2000}
    )
    async with caller.watch(task_id) as watcher:
        await watcher.until(_said(40))
        assert (await caller.cancel(task_id))["requested"]
        asked = time.monotonic()
        request_id = f"{task_id}:1#0@1"
        while True:
            reading = await books.engine.meter(MODEL, request_id)
            assert reading is not None
            if reading.state != "running":
                break
        # The activity learns of it with its next heartbeat; the engine ends within 200 ms more.
        assert time.monotonic() - asked < 3
        assert reading.state == "cancelled"
        last = await watcher.to_end()
    assert last.type == "task.cancelled"
    watcher.assert_once_and_in_order()
    task = await caller.task(task_id)
    assert task["status"] == "cancelled"
    shown = watcher.text()
    assert words(200).startswith(shown)
    (row,) = books.ledger(task_id)
    assert row["outcome"] == "cancelled"
    assert row["output_tokens"] == reading.completion_tokens
    useful = row["output_tokens"] - row["wasted_output_tokens"]
    assert useful == len(shown) == task["completion_tokens"] >= 40
    assert row["billed_usd"] > 0
    assert await books.metered(MODEL) - before == books.booked(MODEL) - booked
    books.assert_nothing_held(caller.organisation_id)
    assert (await caller.cancel(task_id))["requested"] is False


def _said(characters: int) -> Callable[[Watcher], bool]:
    def holds(watcher: Watcher) -> bool:
        return len(watcher.text()) >= characters

    return holds


async def test_a_wish_to_cancel_that_meets_the_end_of_a_call_is_not_lost(
    caller: Caller, books: Books
) -> None:
    """The call ends before the worker hears of the wish; the loop must not go on to the next."""
    calls = [
        choose({"tool": "calculator", "expression": f"1+{number}"}, pace_ms=2)
        for number in range(30)
    ]
    for characters in (10, 25, 40):
        task_id = await caller.submit(
            f"{characters} " + "".join(calls),
            model=MODEL,
            tools=[{"name": "calculator", "max_calls": 50}],
            limits={"max_steps": 60},
        )
        async with caller.watch(task_id) as watcher:
            await watcher.until(_said(characters))
            await caller.cancel(task_id)
            assert (await watcher.to_end()).type == "task.cancelled"
        assert len(await caller.steps(task_id)) <= 3
        await books.assert_attempts_equal(books.ledger(task_id))
    books.assert_nothing_held(caller.organisation_id)


async def test_a_task_cancelled_while_its_engine_is_broken_is_cancelled_and_not_failed(
    caller: Caller, books: Books
) -> None:
    task_id = await caller.submit(say(words(20), fail=30), model=MODEL)
    async with caller.watch(task_id) as watcher:
        # It breaks there again and again.
        await watcher.until(_said(30))
        await caller.cancel(task_id)
        last = await watcher.to_end()
    assert last.type == "task.cancelled"
    rows = books.ledger(task_id)
    assert sum(row["output_tokens"] - row["wasted_output_tokens"] for row in rows) == 30
    await books.assert_attempts_equal(rows)
    books.assert_nothing_held(caller.organisation_id)


async def test_a_task_budget_that_runs_out_on_the_way_is_a_typed_error_with_the_numbers(
    caller: Caller, books: Books
) -> None:
    # A tool choice may cost a whole window of 131,072 tokens, 128 of them output.
    worst = (Decimal(131_072 - 128) * 10 + 128 * 40) / 100_000_000
    question = choose({"tool": "calculator", "expression": "1+1"}) + say("never said")
    task_id = await caller.submit(
        question,
        model=MODEL,
        tools=[{"name": "calculator", "max_calls": 50}],
        # Enough to hold for the first call, not for the second beside what the first has cost.
        limits={"max_cost_usd": f"{worst:.9f}"},
    )
    task = await caller.ended(task_id)
    assert (task["status"], task["error"]["code"]) == ("failed", "OVL-3001")
    assert task["error"]["step"] == 2
    first, *_ = await caller.steps(task_id)
    for number in (f"{worst:.9f}", first["cost_usd"]):
        assert number in task["error"]["message"]
    (row,) = books.ledger(task_id)
    assert Decimal(task["cost_usd"]) == row["billed_usd"] > 0
    books.assert_nothing_held(caller.organisation_id)


async def test_a_worst_case_that_fits_no_budget_is_refused_at_the_door(caller: Caller) -> None:
    with pytest.raises(Exception, match="402") as refused:
        await caller.submit(say("no"), model=MODEL, limits={"max_cost_usd": "0.000001"})
    assert refused.value.problem["code"] == "OVL-3001"  # type: ignore[attr-defined]
