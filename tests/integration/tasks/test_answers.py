"""The agent's loop: answers, tool choices under constraint, its limits."""

from __future__ import annotations

import json

from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, choose, say, words

MODEL = "scripted"
REAL = "smollm2-135m-instruct"


async def test_a_plain_answer_is_told_billed_and_booked(caller: Caller, books: Books) -> None:
    before = await books.metered(MODEL)
    booked = books.booked(MODEL)
    task_id = await caller.submit(say(words(20)), model=MODEL, user="ada", tags={"team": "x"})
    async with caller.watch(task_id) as watcher:
        await watcher.to_end()
    task = await caller.task(task_id)
    assert task["status"] == "succeeded"
    assert task["answer"] == watcher.text() == words(20)
    watcher.assert_once_and_in_order()
    assert [event.type for event in watcher.events if event.type != "text"] == [
        "task.accepted",
        "step.started",
        "step.completed",
        "task.succeeded",
    ]
    (step,) = await caller.steps(task_id)
    assert step["finish_reason"] == "stop"
    assert step["decision"]["candidates"][0]["model"] == MODEL
    assert step["decision"]["candidates"][0]["reason"] == "asked for by name"
    (row,) = books.ledger(task_id)
    assert (row["outcome"], row["usage_source"], row["waste_usd"]) == ("succeeded", "engine", 0)
    assert (row["user_id"], row["tags"]) == ("ada", {"team": "x"})
    assert row["output_tokens"] == task["completion_tokens"]
    assert row["uncached_input_tokens"] + row["cached_input_tokens"] == task["prompt_tokens"]
    # $0.10, $0.02 and $0.40 a million.
    billed = (
        row["uncached_input_tokens"] * 10
        + row["cached_input_tokens"] * 2
        + row["output_tokens"] * 40
    )
    assert int(row["billed_usd"] * 100_000_000) == billed
    assert await books.metered(MODEL) - before == books.booked(MODEL) - booked
    books.assert_nothing_held(caller.organisation_id)


async def test_tools_are_called_with_the_very_words_and_their_results_are_read(
    caller: Caller, books: Books
) -> None:
    question = (
        "What is 12*7, and half of it? "
        + choose({"tool": "calculator", "expression": "12*7"})
        + choose({"tool": "calculator", "expression": "84/2"})
        + choose({"tool": "answer"})
        + say("It is 84, and 42.")
    )
    task = await caller.answered(question, model=MODEL, tools=[{"name": "calculator"}])
    assert task["answer"] == "It is 84, and 42."
    steps = await caller.steps(task["id"])
    chosen = [step["tool_call"] and step["tool_call"]["arguments"] for step in steps]
    assert chosen == [{"expression": "12*7"}, {"expression": "84/2"}, None, None]
    assert [step["tool_result"] for step in steps] == ["12*7 = 84", "84/2 = 42", None, None]
    seen = [part["kind"] for part in steps[3]["provenance"] if part["kept"]]
    assert seen == ["tool_result", "tool_result", "message"]
    rows = books.ledger(task["id"])
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    await books.assert_attempts_equal(rows)
    tools = books.rows(
        "select call_id, attempt, ok from tool_calls where task_id = %s order by call_id",
        task["id"],
    )
    assert [(row["attempt"], row["ok"]) for row in tools] == [(1, True), (1, True)]
    books.assert_nothing_held(caller.organisation_id)


async def test_an_agent_that_asks_the_same_again_is_led_to_its_answer(caller: Caller) -> None:
    question = choose({"tool": "calculator", "expression": "1+1"}) + say("Two.")
    task = await caller.answered(
        question, model=MODEL, tools=[{"name": "calculator", "max_calls": 50}]
    )
    steps = await caller.steps(task["id"])
    assert [step["tool_result"] for step in steps] == ["1+1 = 2", None, None]
    assert task["answer"] == "Two."


async def test_a_tool_that_cannot_answer_says_why_and_the_agent_goes_on(caller: Caller) -> None:
    question = choose({"tool": "calculator", "expression": "1/0"}) + say("No such number.")
    task = await caller.answered(
        question, model=MODEL, tools=[{"name": "calculator", "must_call": True}]
    )
    steps = await caller.steps(task["id"])
    assert (len(steps), steps[0]["tool_result"]) == (2, "division by zero")
    assert steps[0]["tool_calls"][0]["ok"] is False
    assert task["answer"] == "No such number."


async def test_a_real_model_of_135_million_parameters_calls_tools_validly(
    caller: Caller, books: Books
) -> None:
    """Whatever it writes is a call: the grammar leaves it nothing else."""
    task = await caller.answered(
        "What is 12*7? Use the calculator.",
        model=REAL,
        tools=[{"name": "calculator", "must_call": True}],
        sampling={"max_tokens": 12},
    )
    called, answer = await caller.steps(task["id"])
    assert called["tool_call"]["name"] == "calculator"
    assert set(called["tool_call"]["arguments"]) == {"expression"}
    written = json.loads(called["text"])
    assert written["tool"] == "calculator"
    # A value, or a reason such as a division by zero: arithmetic in any case.
    assert " = " in called["tool_result"] or called["tool_result"] == "division by zero"
    assert answer["text"] == task["answer"] != ""
    await books.assert_attempts_equal(books.ledger(task["id"]))
    books.assert_nothing_held(caller.organisation_id)


async def test_the_loop_ends_at_its_step_limit_with_a_typed_error(
    caller: Caller, books: Books
) -> None:
    calls = [choose({"tool": "calculator", "expression": f"1+{n}"}) for n in range(4)]
    task_id = await caller.submit(
        "".join(calls) + say("never said"),
        model=MODEL,
        tools=[{"name": "calculator", "max_calls": 50}],
        limits={"max_steps": 3},
    )
    task = await caller.ended(task_id)
    assert task["status"] == "failed"
    assert task["error"]["code"] == "OVL-3002"
    assert "3 steps" in task["error"]["message"]
    assert len(await caller.steps(task_id)) == 3
    assert len(books.ledger(task_id)) == 3
    books.assert_nothing_held(caller.organisation_id)


async def test_an_answer_ends_at_its_token_limit(caller: Caller) -> None:
    task = await caller.answered(say(words(20)), model=MODEL, sampling={"max_tokens": 10})
    assert task["answer"] == words(20)[:10]
    assert task["completion_tokens"] == 10
    (step,) = await caller.steps(task["id"])
    assert step["finish_reason"] == "length"


async def test_a_long_answer_is_whole_though_no_history_carries_it(caller: Caller) -> None:
    text = words(3_000)
    task = await caller.answered(say(text), model=MODEL, sampling={"max_tokens": 20_000})
    assert task["answer"] == text


async def test_characters_of_any_script_arrive_unbroken(caller: Caller) -> None:
    text = "Überläufer 東京 🛰️ नमस्ते \u200f שלום ⁂ " * 5
    task_id = await caller.submit(say(text, pace_ms=2), model=MODEL, sampling={"max_tokens": 1000})
    async with caller.watch(task_id) as watcher:
        await watcher.to_end()
    assert watcher.text() == text == (await caller.task(task_id))["answer"]
