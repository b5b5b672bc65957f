"""The exact cache: the same again for nothing, and never when it might be another answer."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, choose, say

MODEL = "scripted"


def _question() -> str:
    return f"{uuid4()} " + say("The answer.")


async def test_the_same_again_is_answered_for_nothing(caller: Caller, books: Books) -> None:
    question = _question()
    first = await caller.answered(question, model=MODEL)
    before = await books.metered(MODEL)
    task_id = await caller.submit(question, model=MODEL)
    async with caller.watch(task_id) as watcher:
        await watcher.to_end()
    again = await caller.task(task_id)
    assert again["answer"] == first["answer"] == watcher.text() == "The answer."
    assert await books.metered(MODEL) == before
    assert (again["prompt_tokens"], again["completion_tokens"]) == (0, 0)
    assert float(again["cost_usd"]) == 0
    assert again["saved_usd"] == first["cost_usd"]
    (row,) = books.ledger(task_id)
    assert (row["outcome"], row["usage_source"], row["billed_usd"]) == ("cached", "cache", 0)
    assert row["uncached_input_tokens"] + row["cached_input_tokens"] + row["output_tokens"] == 0
    (original,) = books.ledger(first["id"])
    assert row["saved_usd"] == original["billed_usd"] > 0
    (step,) = await caller.steps(task_id)
    assert (step["cached"], step["model"]) == (True, MODEL)
    books.assert_nothing_held(caller.organisation_id)


async def test_every_step_of_a_task_with_tools_is_cached(caller: Caller, books: Books) -> None:
    question = (
        f"{uuid4()} " + choose({"tool": "calculator", "expression": "6*7"}) + say("It is 42.")
    )
    request: dict[str, Any] = {
        "model": MODEL,
        "tools": [{"name": "calculator", "must_call": True}],
    }
    first = await caller.answered(question, **request)
    again = await caller.answered(question, **request)
    assert again["answer"] == first["answer"] == "It is 42."
    assert [row["outcome"] for row in books.ledger(again["id"])] == ["cached", "cached"]
    # The tool itself is called again: only what a model said is remembered.
    assert [step["tool_result"] for step in await caller.steps(again["id"])] == ["6*7 = 42", None]


@pytest.mark.parametrize(
    "change",
    [
        {"sampling": {"temperature": 0.7}},
        {"cache": "off"},
        {"system": "Be brief."},
        {"sampling": {"max_tokens": 99}},
        {"sampling": {"stop": ["never"]}},
    ],
    ids=["temperature", "off", "system", "max_tokens", "stop"],
)
async def test_what_could_change_the_answer_is_asked_anew(
    caller: Caller, books: Books, change: dict[str, Any]
) -> None:
    question = _question()
    first = await caller.answered(question, model=MODEL)
    changed = await caller.answered(question, model=MODEL, **change)
    assert [row["outcome"] for row in books.ledger(changed["id"])] == ["succeeded"]
    if change.get("cache") == "off" or "temperature" in change.get("sampling", {}):
        # Nor is it remembered: the next one like it is asked anew too.
        third = await caller.answered(question, model=MODEL, **change)
        assert [row["outcome"] for row in books.ledger(third["id"])] == ["succeeded"]
    assert float(first["saved_usd"]) == 0


async def test_another_tenant_is_never_answered_from_it(
    caller: Caller, stack: RunningStack, books: Books
) -> None:
    question = _question()
    await caller.answered(question, model=MODEL)
    other = Caller.made(stack.admin_url, stack.state().urls["api"])
    task = await other.answered(question, model=MODEL)
    await other.http.aclose()
    assert [row["outcome"] for row in books.ledger(task["id"])] == ["succeeded"]
