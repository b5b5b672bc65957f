"""Limits end a task with a typed outcome; what was done until then is readable and paid for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, choose, say, words
from tests.integration.tasks.histories import assert_replays

MODEL = "scripted"
# A choice for every turn, none like another: a loop that never comes to an answer by itself.
ENDLESS = "".join(
    choose({"tool": "calculator", "expression": f"{number}+1"}) for number in range(30)
)
TOOLS = [{"name": "calculator", "max_calls": 50}]


async def _books_are_even(
    caller: Caller, books: Books, task: dict[str, Any], before: Any, booked: Any
) -> None:
    rows = books.ledger(task["id"])
    await books.assert_attempts_equal(rows)
    assert await books.metered(MODEL) - before == books.booked(MODEL) - booked
    billed = sum(row["billed_usd"] for row in rows)
    assert f"{billed:f}" == task["cost_usd"]
    books.assert_nothing_held(caller.organisation_id)


async def test_a_task_ends_after_its_steps(
    caller: Caller, books: Books, stack: RunningStack
) -> None:
    before, booked = await books.metered(MODEL), books.booked(MODEL)
    task_id = await caller.submit(
        f"steps {ENDLESS}", model=MODEL, tools=TOOLS, limits={"max_steps": 3}
    )
    task = await caller.ended(task_id)
    assert (task["status"], task["error"]["code"]) == ("failed", "OVL-3002")
    assert task["error"]["step"] == 3
    steps = await caller.steps(task_id)
    assert [step["status"] for step in steps] == ["succeeded"] * 3
    assert [step["tool_result"] for step in steps] == ["0+1 = 1", "1+1 = 2", "2+1 = 3"]
    await _books_are_even(caller, books, task, before, booked)
    await assert_replays(stack, [f"task-{task_id}"])


async def test_a_task_ends_when_its_tokens_are_used_up(
    caller: Caller, books: Books, stack: RunningStack
) -> None:
    before, booked = await books.metered(MODEL), books.booked(MODEL)
    # A prompt of the endless loop has thousands of tokens, a byte each: enough for two, not three.
    wanted = len(ENDLESS) + 1500
    task_id = await caller.submit(
        f"tokens {ENDLESS}",
        model=MODEL,
        tools=TOOLS,
        cache="off",
        limits={"max_tokens": wanted, "max_steps": 20},
    )
    task = await caller.ended(task_id)
    assert (task["status"], task["error"]["code"]) == ("failed", "OVL-3004")
    steps = await caller.steps(task_id)
    assert 1 <= len(steps) <= 2
    assert all(step["tool_result"] for step in steps)
    used = [step["prompt_tokens"] + step["completion_tokens"] for step in steps]
    # The call that went past it is finished, and there is no call after it.
    assert sum(used[:-1]) < wanted <= sum(used)
    assert str(sum(used)) in task["error"]["message"]
    await _books_are_even(caller, books, task, before, booked)
    await assert_replays(stack, [f"task-{task_id}"])


@pytest.mark.parametrize("tools", [[], [{"name": "calculator", "must_call": True}]])
async def test_a_deadline_ends_a_generation_in_its_middle(
    caller: Caller, books: Books, stack: RunningStack, tools: list[dict[str, Any]]
) -> None:
    before, booked = await books.metered(MODEL), books.booked(MODEL)
    text = words(400)
    calculate = choose({"tool": "calculator", "expression": "6*7"})
    task_id = await caller.submit(
        f"deadline {calculate}{say(text, pace_ms=20)}",
        model=MODEL,
        tools=tools,
        sampling={"max_tokens": 3000},
        limits={"deadline_seconds": 2},
    )
    async with caller.watch(task_id) as watcher:
        last = await watcher.to_end()
    assert last.type == "task.failed"
    watcher.assert_once_and_in_order()
    task = await caller.task(task_id)
    assert (task["status"], task["error"]["code"]) == ("failed", "OVL-3005")
    *earlier, late = await caller.steps(task_id)
    assert [step["tool_result"] for step in earlier] == ["6*7 = 42"] * len(tools)
    assert late["status"] == "cancelled"
    # What was shown is kept and billed, and nothing that was not.
    shown = watcher.text(late["step"])
    assert text.startswith(shown)
    assert 0 < len(shown) < len(text)
    row = books.ledger(task_id)[-1]
    assert row["outcome"] == "cancelled"
    assert row["output_tokens"] - row["wasted_output_tokens"] == len(shown)
    assert late["completion_tokens"] == len(shown)
    assert row["billed_usd"] > 0
    await _books_are_even(caller, books, task, before, booked)
    await assert_replays(stack, [f"task-{task_id}"])
