"""Answers that must obey a schema: held to it, looked at, written again, given up, all typed."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.chaos.victims import kill, pids_of
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, choose, say
from tests.integration.tasks.histories import assert_replays

MODEL = "scripted"
REAL = "smollm2-135m-instruct"
COUNT = {
    "type": "object",
    "properties": {"zeal": {"type": "integer"}, "a": {"type": "string"}},
    "required": ["zeal", "a"],
    "additionalProperties": False,
}
# No grammar expresses a pattern: nobody can be held to this one.
CODE = {
    "type": "object",
    "properties": {"code": {"type": "string", "pattern": "^[A-Z]{2}$"}},
    "required": ["code"],
}


def _instance(value: Any, **attributes: Any) -> str:
    """Return a directive that plays an answer which the engine holds to a schema."""
    return choose(value, **attributes)


async def test_the_engine_holds_a_real_model_to_the_schema(caller: Caller, books: Books) -> None:
    schema = {
        "type": "object",
        "properties": {
            "zone": {"enum": ["north", "south"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 9},
            "about": {"type": "string", "maxLength": 20},
        },
        "required": ["zone", "count", "about"],
    }
    task = await caller.answered(
        "Where is the pole?", model=REAL, output_schema=schema, sampling={"max_tokens": 120}
    )
    answer = json.loads(task["answer"])
    assert answer["zone"] in ("north", "south")
    assert 0 <= answer["count"] <= 9
    # In the order of the schema, which the model writes in, and jsonb would not keep.
    assert list(answer) == ["zone", "count", "about"]
    (step,) = await caller.steps(task["id"])
    assert step["decision"]["candidates"][0]["constrained"] is True
    books.assert_nothing_held(caller.organisation_id)


async def test_a_valid_answer_is_found_again_under_the_same_schema_only(
    caller: Caller, books: Books
) -> None:
    question = f"{time.monotonic_ns()} " + _instance({"zeal": 1, "a": "x"})
    first = await caller.answered(question, model=MODEL, output_schema=COUNT)
    assert json.loads(first["answer"]) == {"zeal": 1, "a": "x"}
    again = await caller.answered(question, model=MODEL, output_schema=COUNT)
    assert [step["cached"] for step in await caller.steps(again["id"])] == [True]
    assert again["answer"] == first["answer"]
    # Another order of properties is another schema: a model would write another answer.
    turned = COUNT | {"properties": dict(reversed(COUNT["properties"].items()))}  # type: ignore[attr-defined]
    other = await caller.answered(question, model=MODEL, output_schema=turned)
    assert [step["cached"] for step in await caller.steps(other["id"])] == [False]
    books.assert_nothing_held(caller.organisation_id)


async def test_an_answer_that_does_not_obey_is_shown_to_the_model_and_written_again(
    caller: Caller, books: Books, stack: RunningStack
) -> None:
    before, booked = await books.metered(MODEL), books.booked(MODEL)
    question = (
        f"{time.monotonic_ns()} "
        + say("It is AB.")
        + say(json.dumps({"code": "secret"}))
        + say(json.dumps({"code": "AB"}))
    )
    task_id = await caller.submit(question, model=MODEL, output_schema=CODE)
    async with caller.watch(task_id) as watcher:
        await watcher.to_end()
    watcher.assert_once_and_in_order()
    task = await caller.task(task_id)
    assert (task["status"], json.loads(task["answer"])) == ("succeeded", {"code": "AB"})
    steps = await caller.steps(task_id)
    assert [step["text"] for step in steps] == [
        "It is AB.",
        '{"code": "secret"}',
        '{"code": "AB"}',
    ]
    assert [step["decision"]["candidates"][0]["constrained"] for step in steps] == [False] * 3
    # The second sees the first with what is wrong; the third sees both.
    shown = [[part["source"] for part in step["provenance"]] for step in steps]
    assert [[source for source in sources if source.startswith("step")] for sources in shown] == [
        [],
        ["step 1"] * 2,
        ["step 1"] * 2 + ["step 2"] * 2,
    ]
    rows = books.ledger(task_id)
    await books.assert_attempts_equal(rows)
    # Every one was asked for and is paid for.
    assert all(row["outcome"] == "succeeded" and row["billed_usd"] > 0 for row in rows)
    assert await books.metered(MODEL) - before == books.booked(MODEL) - booked
    books.assert_nothing_held(caller.organisation_id)
    await assert_replays(stack, [f"task-{task_id}"])
    # A fork from its second step inherits the first with what was wrong with it, and asks the same.
    forked = await caller.request("POST", f"/v1/tasks/{task_id}/fork", json={"from_step": 2})
    fork = await caller.ended(forked.json()["id"])
    assert json.loads(fork["answer"]) == {"code": "AB"}
    assert [step["text"] for step in await caller.steps(fork["id"])] == [
        step["text"] for step in steps
    ]
    # What did not obey was not kept: the same task again meets its steps anew, but for the last.
    again = await caller.answered(question, model=MODEL, output_schema=CODE)
    assert [step["cached"] for step in await caller.steps(again["id"])] == [False, False, True]


async def test_an_answer_that_never_obeys_ends_the_task_typed(
    caller: Caller, books: Books, stack: RunningStack
) -> None:
    # Held to the schema, but cut off every time: half an object is none.
    question = f"{time.monotonic_ns()} " + _instance({"zeal": 1234567, "a": "x"})
    task_id = await caller.submit(
        question, model=MODEL, output_schema=COUNT, sampling={"max_tokens": 8}
    )
    async with caller.watch(task_id) as watcher:
        last = await watcher.to_end()
    assert last.type == "task.failed"
    assert last.payload["error"]["code"] == "OVL-1008"
    task = await caller.task(task_id)
    assert (task["status"], task["answer"]) == ("failed", None)
    assert (task["error"]["code"], task["error"]["step"]) == ("OVL-1008", 4)
    assert "cut off" in task["error"]["message"]
    steps = await caller.steps(task_id)
    assert [(step["text"], step["finish_reason"]) for step in steps] == [('{"zeal":', "length")] * 4
    rows = books.ledger(task_id)
    await books.assert_attempts_equal(rows)
    assert f"{sum(row['billed_usd'] for row in rows):f}" == task["cost_usd"]
    books.assert_nothing_held(caller.organisation_id)
    await assert_replays(stack, [f"task-{task_id}"])


async def test_a_kill_while_an_answer_is_written_again_loses_and_repeats_nothing(
    caller: Caller, books: Books, stack: RunningStack
) -> None:
    good = {"code": "AB", "why": " ".join(["because"] * 30)}
    question = f"{time.monotonic_ns()} " + say("no") + say(json.dumps(good), pace_ms=8)
    task_id = await caller.submit(
        question, model=MODEL, output_schema=CODE, sampling={"max_tokens": 2000}
    )
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text(2)) > 60)
        kill(await pids_of("worker", stack, task_id))
        last = await watcher.to_end()
    assert last.type == "task.succeeded"
    watcher.assert_once_and_in_order()
    assert json.loads(watcher.text(2)) == good
    rows = books.ledger(task_id)
    books.assert_no_call_ran_twice(rows)
    await books.assert_attempts_equal(rows)
    assert [row["epoch"] for row in rows if row["call_key"].endswith(":1")] == [1]
    books.assert_nothing_held(caller.organisation_id)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "count"}, "type"),
        ({"$ref": "http://127.0.0.1:1/schema.json"}, "refers to what is not in it"),
        ({"$ref": "#/nowhere"}, "refers to what is not in it"),
        ({"pattern": "("}, "pattern"),
        ({"description": "x" * 16_384}, "larger than 16384 bytes"),
    ],
)
async def test_a_schema_that_is_none_is_refused_at_the_door(
    caller: Caller, schema: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused) as refused:
        await caller.submit(say("x"), model=MODEL, output_schema=schema)
    problem = refused.value.problem
    assert (refused.value.status, problem["code"]) == (422, "OVL-1001")
    assert problem["errors"][0]["pointer"] == "/output_schema"
    assert said in problem["errors"][0]["detail"]


async def test_a_grammar_is_not_asked_for_what_it_cannot_be(caller: Caller) -> None:
    """A schema that contains itself and nothing else is obeyed by everything."""
    task = await caller.answered(
        say("1"), model=MODEL, output_schema={"$ref": "#"}, sampling={"max_tokens": 20}
    )
    assert task["answer"] == "1"
