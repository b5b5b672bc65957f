"""Calls that wait for a person, on the real stack: durably, bound to their arguments, once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from typing import Any

import pytest

from tests.chaos.victims import kill, pids_of
from tests.integration.api.conftest import serving
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, choose, say

MODEL = "scripted"
ARGUMENTS = {"expression": "6*7"}


async def begin(caller: Caller, approval: Any = "always", **fields: Any) -> str:
    question = choose({"tool": "calculator", **ARGUMENTS}) + say("Done.")
    uses = [{"name": "calculator", "must_call": True, "approval": approval}]
    return await caller.submit(question, model=MODEL, tools=uses, cache="off", **fields)


async def waiting(caller: Caller, task_id: str, *, limit_s: float = 60) -> dict[str, Any]:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        answer = await caller.request("GET", f"/v1/tasks/{task_id}/approvals")
        found: list[dict[str, Any]] = answer.json()["approvals"]
        if found:
            return found[-1]
        await asyncio.sleep(0.05)
    raise AssertionError("nobody was asked")


async def decide(caller: Caller, task_id: str, call_id: str, **decision: Any) -> dict[str, Any]:
    answer = await caller.request("POST", f"/v1/tasks/{task_id}/approvals/{call_id}", json=decision)
    read: dict[str, Any] = answer.json()
    return read


async def test_an_approved_call_is_made_and_the_task_survives_every_worker_while_it_waits(
    caller: Caller, stack: RunningStack
) -> None:
    task_id = await begin(caller)
    asked = await waiting(caller, task_id)
    digest = hashlib.sha256(
        json.dumps(ARGUMENTS, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
    assert (asked["arguments"], asked["arguments_sha256"]) == (ARGUMENTS, digest)
    assert asked["call_id"] == f"{task_id}:1:calculator:{digest[:16]}"
    assert (await caller.task(task_id))["waiting_for"] == "approval"
    kill(await pids_of("workers", stack, task_id))
    approved = await decide(caller, task_id, asked["call_id"], decision="approve")
    assert approved["status"] == "approved"
    task = await caller.ended(task_id)
    assert (task["status"], task["waiting_for"]) == ("succeeded", None)
    (first, _) = await caller.steps(task_id)
    assert first["tool_result"] == "6*7 = 42"
    async with caller.watch(task_id) as watcher:
        await watcher.to_end()
    types = [event.type for event in watcher.events]
    assert types.count("approval.requested") == types.count("approval.decided") == 1
    assert ARGUMENTS["expression"] not in json.dumps(
        [event.payload for event in watcher.events if event.type.startswith("approval.")]
    )
    # Deciding again is the same answer, also after the end; deciding otherwise is not.
    again = await decide(caller, task_id, asked["call_id"], decision="approve")
    assert again == approved
    with pytest.raises(Refused) as refused:
        await decide(caller, task_id, asked["call_id"], decision="refuse")
    assert (refused.value.status, refused.value.problem["code"]) == (409, "OVL-1005")


async def test_a_refusal_and_other_arguments_are_told_to_the_model(caller: Caller) -> None:
    refused_id, edited_id = await begin(caller), await begin(caller)
    asked = await waiting(caller, refused_id)
    await decide(caller, refused_id, asked["call_id"], decision="refuse", reason="too dear")
    asked = await waiting(caller, edited_id)
    await decide(
        caller,
        edited_id,
        asked["call_id"],
        decision="approve",
        arguments={"expression": "2+2"},
    )
    for task_id, words, ok in (
        (refused_id, "a person refused this call: too dear", False),
        (edited_id, '(a person changed the arguments to {"expression": "2+2"}) 2+2 = 4', True),
    ):
        assert (await caller.ended(task_id))["status"] == "succeeded"
        (first, second) = await caller.steps(task_id)
        assert first["tool_result"] == words
        assert first["tool_calls"][-1]["ok"] is ok
        kinds = [part["kind"] for part in second["provenance"]]
        assert "tool_result" in kinds


async def test_only_calls_that_match_wait(caller: Caller) -> None:
    free = await begin(caller, {"when": {"expression": "*/*"}})
    assert (await caller.ended(free))["status"] == "succeeded"
    assert not (await caller.request("GET", f"/v1/tasks/{free}/approvals")).json()["approvals"]
    held = await begin(caller, {"when": {"expression": "6?7"}})
    asked = await waiting(caller, held)
    await decide(caller, held, asked["call_id"], decision="approve")
    assert (await caller.ended(held))["status"] == "succeeded"


async def test_nobody_decides_about_what_is_not_there_not_theirs_or_over(
    caller: Caller, stack: RunningStack
) -> None:
    task_id = await begin(caller)
    asked = await waiting(caller, task_id)
    other = Caller.made(stack.admin_url, caller.base_url)
    for who, call_id in ((caller, "no-such-call"), (other, asked["call_id"])):
        with pytest.raises(Refused) as refused:
            await decide(who, task_id, call_id, decision="approve")
        assert refused.value.status == 404
    await other.http.aclose()
    await caller.cancel(task_id)
    assert (await caller.ended(task_id))["status"] == "cancelled"
    with pytest.raises(Refused) as refused:
        await decide(caller, task_id, asked["call_id"], decision="approve")
    assert (refused.value.status, refused.value.problem["code"]) == (409, "OVL-1005")
    assert "has ended" in refused.value.problem["detail"]


async def test_a_deadline_ends_the_wait(caller: Caller) -> None:
    task_id = await begin(caller, limits={"deadline_seconds": 3})
    await waiting(caller, task_id)
    task = await caller.ended(task_id)
    assert (task["status"], task["error"]["code"]) == ("failed", "OVL-3005")


async def test_the_same_decision_sent_to_two_api_processes_is_answered_alike_by_both(
    caller: Caller, stack: RunningStack
) -> None:
    """Neither process remembers anything: the second one answers 200 with the decision that is."""
    task_id = await begin(caller)
    call_id = (await waiting(caller, task_id))["call_id"]
    async with serving(stack.settings) as second:
        there = Caller(str(second.base_url), caller.token, caller.organisation_id, caller.key_id)
        answers = await asyncio.gather(
            *(decide(who, task_id, call_id, decision="approve") for who in (caller, there) * 3)
        )
        assert all(answer == answers[0] for answer in answers)
        assert (await caller.ended(task_id))["status"] == "succeeded"
        assert await decide(there, task_id, call_id, decision="approve") == answers[0]
        await there.http.aclose()
    (first, _) = await caller.steps(task_id)
    assert [call["attempt"] for call in first["tool_calls"]] == [1]


async def test_a_decision_is_about_one_call_with_its_arguments_and_about_no_other(
    caller: Caller,
) -> None:
    """Whatever a model calls its calls: ids are ours, and another call has another one."""
    question = (
        f"{time.monotonic_ns()} "
        + choose({"tool": "calculator", "expression": "6*7"})
        + choose({"tool": "calculator", "expression": "6*8"})
        + say("Done.")
    )
    uses = [{"name": "calculator", "max_calls": 2, "approval": "always"}]
    task_id = await caller.submit(question, model=MODEL, tools=uses, cache="off")
    first = await waiting(caller, task_id)
    await decide(caller, task_id, first["call_id"], decision="approve")
    deadline = time.monotonic() + 60
    while (second := await waiting(caller, task_id))["call_id"] == first["call_id"]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert second["arguments_sha256"] != first["arguments_sha256"]
    # What was decided of the first says nothing of the second, however often it is said.
    again = await decide(caller, task_id, first["call_id"], decision="approve")
    assert again["call_id"] == first["call_id"]
    assert (await caller.task(task_id))["waiting_for"] == "approval"
    # An id with the digest of other arguments is none.
    forged = second["call_id"].rpartition(":")[0] + ":" + first["call_id"].rpartition(":")[2]
    with pytest.raises(Refused) as refused:
        await decide(caller, task_id, forged, decision="approve")
    assert refused.value.status == 404
    await decide(caller, task_id, second["call_id"], decision="refuse", reason="enough")
    assert (await caller.ended(task_id))["status"] == "succeeded"
    one, two, *_ = await caller.steps(task_id)
    assert (one["tool_result"], two["tool_result"]) == (
        "6*7 = 42",
        "a person refused this call: enough",
    )


async def test_two_people_who_decide_at_once_get_one_decision(caller: Caller, books: Books) -> None:
    task_id = await begin(caller)
    call_id = (await waiting(caller, task_id))["call_id"]
    wishes = [{"decision": "approve"}, {"decision": "refuse", "reason": "no"}] * 4
    answers = await asyncio.gather(
        *(decide(caller, task_id, call_id, **wish) for wish in wishes), return_exceptions=True
    )
    stood = {answer["status"] for answer in answers if isinstance(answer, dict)}
    assert len(stood) == 1
    assert sum(isinstance(answer, Refused) for answer in answers) == 4
    assert (await caller.ended(task_id))["status"] == "succeeded"
    (row,) = books.rows(
        "select count(*) as n from audit_log where subject = %s and action like 'approval.%%'",
        call_id,
    )
    assert row["n"] == 1


async def test_a_decision_that_was_noted_and_not_told_is_told_by_the_sweeper(
    caller: Caller, books: Books
) -> None:
    """As if the API had died between the row and the signal; the workflow sleeps for long."""
    task_id = await begin(caller)
    call_id = (await waiting(caller, task_id))["call_id"]
    books.rows(
        "select f.* from (select set_config('overline.organisation_id', %s, true)) b (o)"
        " cross join lateral decide_approval(b.o::uuid, %s, %s, 'approve', null, null, %s) f",
        str(caller.organisation_id),
        task_id,
        call_id,
        caller.key_id,
    )
    assert (await caller.ended(task_id))["status"] == "succeeded"
    # By itself it would have looked after a minute, and then ever more seldom.
    (row,) = books.rows("select told from approvals where call_id = %s", call_id)
    assert row["told"]
