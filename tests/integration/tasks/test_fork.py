"""Forks: earlier steps are kept and not paid for again, whatever state the parent is in."""

from __future__ import annotations

import json
import time
from typing import Any
from uuid import uuid4

import pytest

from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, choose, say

MODEL = "scripted"
REAL = "smollm2-135m-instruct"


def _request(**changes: Any) -> dict[str, Any]:
    question = (
        f"{uuid4()} "
        + choose({"tool": "calculator", "expression": "12*7"})
        + choose({"tool": "calculator", "expression": "84/2"})
        + choose({"tool": "answer"})
        + say("It is 84, and 42.")
    )
    return {
        "input": question,
        "model": MODEL,
        "tools": [{"name": "calculator"}],
        "limits": {"max_steps": 8},
    } | changes


async def _fork(caller: Caller, task_id: str, *, key: str | None = None, **body: Any) -> str:
    headers = {"Idempotency-Key": key or str(uuid4())}
    answer = await caller.request("POST", f"/v1/tasks/{task_id}/fork", json=body, headers=headers)
    assert answer.status_code == 202
    return str(answer.json()["id"])


async def _diff(caller: Caller, left: str, right: str) -> dict[str, Any]:
    read: dict[str, Any] = (await caller.request("GET", f"/v1/tasks/{left}/diff/{right}")).json()
    return read


@pytest.mark.parametrize("from_step", [1, 2, 3, 4])
async def test_a_fork_without_a_change_asks_exactly_what_its_parent_asked(
    caller: Caller, books: Books, from_step: int
) -> None:
    parent = await caller.answered(**_request())
    before = await books.metered(MODEL)
    fork_id = await _fork(caller, parent["id"], from_step=from_step)
    fork = await caller.ended(fork_id)
    assert (fork["status"], fork["answer"]) == ("succeeded", parent["answer"])
    # The cache knew every call: the digests are those of the parent's own loop.
    assert await books.metered(MODEL) == before
    rows = books.ledger(fork_id)
    assert [(row["step"], row["outcome"]) for row in rows] == [
        (step, "cached") for step in range(from_step, 5)
    ]
    steps = await caller.steps(fork_id)
    assert [step["inherited"] for step in steps] == [n < from_step for n in range(1, 5)]
    for own, inherited in zip(await caller.steps(parent["id"]), steps, strict=True):
        for name in ("model", "text", "tool_call", "tool_result", "finish_reason"):
            assert own[name] == inherited[name], name
        assert float(inherited["cost_usd"]) == 0
        assert (inherited["prompt_tokens"], inherited["completion_tokens"]) == (0, 0)
    assert float(fork["cost_usd"]) == 0
    diff = await _diff(caller, parent["id"], fork_id)
    assert (diff["same_answer"], diff["first_difference"]) == (True, None)
    assert [step["state"] for step in diff["steps"]] == ["same"] * 4
    assert diff["right"]["inherited"] == from_step - 1
    books.assert_nothing_held(caller.organisation_id)


async def test_another_result_of_a_tool_is_read_and_only_what_follows_is_paid(
    caller: Caller, books: Books
) -> None:
    parent = await caller.answered(**_request())
    fork_id = await _fork(caller, parent["id"], from_step=2, tool_result="12*7 = 85")
    async with caller.watch(fork_id) as watcher:
        await watcher.to_end()
    watcher.assert_once_and_in_order()
    (forked,) = [event for event in watcher.events if event.type == "task.forked"]
    assert forked.payload == {
        "parent": parent["id"],
        "from_step": 2,
        "changed": ["tool_result"],
    }
    fork = await caller.task(fork_id)
    assert fork["status"] == "succeeded"
    first, second, *_ = await caller.steps(fork_id)
    assert (first["inherited"], first["tool_result"]) == (True, "12*7 = 85")
    assert second["inherited"] is False
    rows = books.ledger(fork_id)
    assert [row["step"] for row in rows] == [2, 3, 4]
    assert {row["outcome"] for row in rows} == {"succeeded"}
    assert sum(row["billed_usd"] for row in rows) > 0
    # The parent is as it was.
    assert (await caller.steps(parent["id"]))[0]["tool_result"] == "12*7 = 84"
    diff = await _diff(caller, parent["id"], fork_id)
    assert diff["first_difference"] == 1
    assert diff["steps"][0]["differs"] == ["tool_result"]
    assert [step["state"] for step in diff["steps"][1:]] == ["same"] * 3
    assert fork["parent"]["id"] == parent["id"]
    assert fork["parent"]["from_step"] == 2
    linked = (await caller.task(parent["id"]))["forks"]
    assert [(link["id"], link["changed"]) for link in linked] == [(fork_id, ["tool_result"])]
    await books.assert_attempts_equal(rows)
    books.assert_nothing_held(caller.organisation_id)


async def test_another_model_answers_the_rest(caller: Caller, books: Books) -> None:
    parent = await caller.answered(**_request())
    fork_id = await _fork(caller, parent["id"], from_step=4, model=REAL, sampling={"max_tokens": 8})
    fork = await caller.ended(fork_id)
    assert fork["status"] == "succeeded", fork
    steps = await caller.steps(fork_id)
    assert [step["model"] for step in steps] == [MODEL, MODEL, MODEL, REAL]
    (row,) = books.ledger(fork_id)
    assert (row["step"], row["model"]) == (4, REAL)
    diff = await _diff(caller, parent["id"], fork_id)
    assert diff["steps"][3]["state"] == "changed"
    assert "model" in diff["steps"][3]["differs"]


async def test_another_question_and_system_prompt_keep_the_steps(caller: Caller) -> None:
    parent = await caller.answered(**_request())
    # Turn 4 of this question, and of no other.
    prompt = "".join(choose({"tool": "answer"}) for _ in range(3)) + say("Another.")
    fork_id = await _fork(caller, parent["id"], from_step=3, prompt=prompt, system="Be brief.")
    fork = await caller.ended(fork_id)
    assert fork["status"] == "succeeded", fork
    assert fork["preview"].startswith("[[call")
    steps = await caller.steps(fork_id)
    assert [step["inherited"] for step in steps][:2] == [True, True]
    assert {part["kind"] for part in steps[-1]["provenance"]} >= {"system", "tool_result"}


async def test_a_fork_of_a_fork_inherits_what_was_inherited(caller: Caller) -> None:
    parent = await caller.answered(**_request())
    one = await _fork(caller, parent["id"], from_step=2, tool_result="12*7 = 85")
    await caller.ended(one)
    two = await _fork(caller, one, from_step=3)
    assert (await caller.ended(two))["status"] == "succeeded"
    assert [step["inherited"] for step in await caller.steps(two)] == [True, True, False, False]
    assert (await caller.steps(two))[0]["tool_result"] == "12*7 = 85"
    assert (await caller.task(two))["parent"]["id"] == one


async def test_a_task_that_failed_at_its_step_limit_goes_on_with_a_longer_one(
    caller: Caller, books: Books
) -> None:
    failed = await caller.ended(await caller.submit(**_request(limits={"max_steps": 2})))
    assert failed["error"]["code"] == "OVL-3002"
    fork_id = await _fork(caller, failed["id"], from_step=3, limits={"max_steps": 6})
    fork = await caller.ended(fork_id)
    assert (fork["status"], fork["answer"]) == ("succeeded", "It is 84, and 42.")
    assert [row["step"] for row in books.ledger(fork_id)] == [3, 4]


async def test_running_and_cancelled_parents_are_forked_at_their_finished_steps(
    caller: Caller, books: Books
) -> None:
    question = choose({"tool": "calculator", "expression": "1+1"}) + say("x" * 400, pace_ms=20)
    parent = await caller.submit(
        f"{uuid4()} {question}",
        model=MODEL,
        tools=[{"name": "calculator", "must_call": True}],
        sampling={"max_tokens": 600},
    )
    async with caller.watch(parent) as watcher:
        await watcher.until(lambda seen: len(seen.text(2)) > 10)
        running = await _fork(caller, parent, from_step=2, sampling={"max_tokens": 5})
        with pytest.raises(Refused) as refused:
            await _fork(caller, parent, from_step=3)
        (problem,) = refused.value.problem["errors"]
        assert (problem["pointer"], problem["code"]) == ("/from_step", "not_finished")
        await caller.cancel(parent)
        await watcher.to_end()
    assert (await caller.ended(running))["answer"] == "xxxxx"
    cancelled = await _fork(caller, parent, from_step=2, sampling={"max_tokens": 6})
    assert (await caller.ended(cancelled))["answer"] == "xxxxxx"
    links = [link["id"] for link in (await caller.task(parent))["forks"]]
    assert links == [running, cancelled]
    books.assert_nothing_held(caller.organisation_id)


async def test_what_cannot_be_forked_says_where(caller: Caller, stack: RunningStack) -> None:
    parent = await caller.answered(**_request())
    cases: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"from_step": 5}, "/from_step", "no_such_step"),
        ({"from_step": 6}, "/from_step", "no_such_step"),
        ({"from_step": 0}, "/from_step", "too_small"),
        ({}, "/from_step", "missing"),
        ({"from_step": 4, "tool_result": "x"}, "/tool_result", "no_tool_call"),
        ({"from_step": 1, "tool_result": "x"}, "/tool_result", "no_tool_call"),
        ({"from_step": 1, "surprise": 1}, "/surprise", "unknown_field"),
        ({"from_step": 1, "prompt": " "}, "/input", "too_short"),
        ({"from_step": 1, "sampling": {"min_tokens": 999}}, "/sampling", "contradiction"),
    )
    for body, pointer, code in cases:
        with pytest.raises(Refused) as refused:
            await _fork(caller, parent["id"], **body)
        assert refused.value.status == 422, body
        assert refused.value.problem["errors"][0]["pointer"] == pointer, body
        assert refused.value.problem["errors"][0]["code"] == code, body
    for name in ("model", "route"):
        with pytest.raises(Refused, match="404"):
            await _fork(caller, parent["id"], from_step=1, **{name: "unheard-of"})
    with pytest.raises(Refused, match="402"):
        await _fork(caller, parent["id"], from_step=1, limits={"max_cost_usd": "0.000001"})
    assert (await caller.task(parent["id"]))["forks"] == []
    other = Caller.made(stack.admin_url, stack.state().urls["api"])
    for path in ("fork", "pause", "resume"):
        with pytest.raises(Refused, match="404"):
            await other.request("POST", f"/v1/tasks/{parent['id']}/{path}", json={"from_step": 1})
    for path in ("why", f"diff/{parent['id']}"):
        with pytest.raises(Refused, match="404"):
            await other.request("GET", f"/v1/tasks/{parent['id']}/{path}")
    await other.http.aclose()


async def test_the_same_fork_with_the_same_key_is_one(caller: Caller) -> None:
    parent = await caller.answered(**_request())
    key = str(uuid4())
    one = await _fork(caller, parent["id"], key=key, from_step=2)
    assert await _fork(caller, parent["id"], key=key, from_step=2) == one
    with pytest.raises(Refused, match="409"):
        await _fork(caller, parent["id"], key=key, from_step=3)
    await caller.ended(one)
    assert len((await caller.task(parent["id"]))["forks"]) == 1


async def test_a_fork_whose_api_died_before_the_start_is_started_where_it_was_to(
    caller: Caller, books: Books, stack: RunningStack
) -> None:
    """A row without a workflow, as a crash between the two leaves it."""
    parent = await caller.answered(**_request())
    fork_id = await _fork(caller, parent["id"], from_step=3)
    await caller.ended(fork_id)
    (left,) = books.rows("select state from task_forks where task_id = %s", fork_id)
    assert left["state"]["step"] == 2
    assert "12*7" not in json.dumps(left["state"])
    # The same row once more, under another id, accepted ten seconds ago.
    copy = str(uuid4())
    books.rows(
        "with t as (insert into tasks (organisation_id, task_id, team_id, key_id, workflow_id,"
        " request_digest, route, input, worst_case_usd, created_at, steps)"
        " select organisation_id, %s, team_id, key_id, %s, request_digest, route, input,"
        " worst_case_usd, now() - interval '11 s', 2 from tasks where task_id = %s"
        " returning organisation_id, task_id),"
        " f as (insert into task_forks (organisation_id, task_id, parent_task_id, from_step,"
        " changed, state) select organisation_id, t.task_id, o.parent_task_id, o.from_step,"
        " o.changed, o.state from task_forks o join t using (organisation_id)"
        " where o.task_id = %s returning task_id)"
        " insert into steps (organisation_id, task_id, step, call_key, status, model, text,"
        " tool_call, tool_result, started_at, ended_at, inherited)"
        " select organisation_id, t.task_id, s.step, t.task_id || ':' || s.step, s.status,"
        " s.model, s.text, s.tool_call, s.tool_result, s.started_at, s.ended_at, true"
        " from steps s join t using (organisation_id) where s.task_id = %s and s.step < 3"
        " returning step",
        copy,
        f"task-{copy}",
        fork_id,
        fork_id,
        fork_id,
    )
    deadline = time.monotonic() + 30
    task = await caller.ended(copy, limit_s=deadline - time.monotonic())
    assert (task["status"], task["answer"]) == ("succeeded", parent["answer"])
    assert [row["step"] for row in books.ledger(copy)] == [3, 4]
