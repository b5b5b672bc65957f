"""A budget that is spent in the middle of a task: it pauses, says why, and goes on when raised."""

from __future__ import annotations

import asyncio
import time
from decimal import Decimal
from typing import Any

import pytest
from temporalio.client import Client

from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, ask, choose, say
from tests.integration.tasks.histories import assert_replays
from workflows.client import connect_kwargs

MODEL = "scripted"
NOTHING = "0.000000001"


def _question(answer: str = "At last.") -> dict[str, Any]:
    """A step with a tool, slow enough to lower a budget in it, and an answer."""
    chosen = choose({"tool": "calculator", "expression": "6*7"}, pace_ms=25)
    return {
        "input": f"{time.monotonic_ns()} " + chosen + say(answer),
        "model": MODEL,
        "cache": "off",
        "tools": [{"name": "calculator", "must_call": True}],
    }


async def _cap(caller: Caller, cap_usd: str, scope: str = "key") -> str:
    budget = {"scope": scope, "subject": str(caller.key_id), "period": "month", "cap_usd": cap_usd}
    made = (await caller.request("POST", "/v1/budgets", json=budget)).json()
    return str(made["budgets"][0]["id"])


async def _paused(caller: Caller, task_id: str, reason: str, *, limit_s: float = 60) -> Any:
    deadline = time.monotonic() + limit_s
    while True:
        task = await caller.task(task_id)
        if task["pause_reason"] is not None and task["pause_reason"]["reason"] == reason:
            assert task["status"] == "paused"
            return task
        assert time.monotonic() < deadline, task
        assert task["finished_at"] is None, task
        await asyncio.sleep(0.05)


async def test_a_task_pauses_says_why_and_goes_on_when_its_budget_is_raised(
    caller: Caller, books: Books, stack: RunningStack
) -> None:
    task_id = await caller.submit(**_question())
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: any(each.type == "step.started" for each in seen.events))
        budget_id = await _cap(caller, NOTHING)
        task = await _paused(caller, task_id, "budget_exhausted")
        told = task["pause_reason"]["budget"]
        assert (told["id"], told["scope"], told["subject"]) == (
            budget_id,
            "key",
            str(caller.key_id),
        )
        assert (told["limit_usd"], told["held_usd"]) == (NOTHING, "0.000000000")
        assert float(told["needed_usd"]) > float(NOTHING)
        listed = (await caller.request("GET", "/v1/tasks?status=paused")).json()["tasks"]
        assert [each["id"] for each in listed] == [task_id]
        why = (await caller.request("GET", f"/v1/tasks/{task_id}/why")).json()
        assert why["moving"] is False
        first = why["reasons"][0]
        assert first["code"] == "budget_exhausted"
        assert first["facts"]["budget_id"] == budget_id
        assert f"${NOTHING}" in first["text"]
        # The same where workflows are listed.
        client = await Client.connect(
            stack.settings.temporal_address, **connect_kwargs(stack.settings)
        )
        query = f"WorkflowId = 'task-{task_id}' and OverlineStatus = 'paused'"
        deadline = time.monotonic() + 20
        while not [each async for each in client.list_workflows(query)]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)

        # Nobody who dies forgets it; somebody who lets it go on in vain does no harm.
        for part in ("worker-1", "api"):
            stack.kill(part)
        await caller.request("POST", f"/v1/tasks/{task_id}/resume")
        paused = [each for each in watcher.events if each.type == "task.paused"]
        await watcher.until(
            lambda seen: len([e for e in seen.events if e.type == "task.paused"]) > len(paused)
        )
        await _paused(caller, task_id, "budget_exhausted")

        # A person who pauses it has it wait for them, raised or not.
        await caller.request("POST", f"/v1/tasks/{task_id}/pause")
        await _paused(caller, task_id, "asked")
        await _cap(caller, "5")
        await asyncio.sleep(1)
        assert (await caller.task(task_id))["status"] == "paused"
        await _cap(caller, NOTHING)
        await caller.request("POST", f"/v1/tasks/{task_id}/resume")
        await _paused(caller, task_id, "budget_exhausted")
        await _cap(caller, "5")
        last = await watcher.to_end()
    assert last.type == "task.succeeded"
    watcher.assert_once_and_in_order()
    reasons = [each.payload.get("reason") for each in watcher.events if each.type == "task.paused"]
    assert reasons[0] == "budget_exhausted"
    task = await caller.task(task_id)
    assert (task["answer"], task["pause_reason"]) == ("At last.", None)
    books.assert_no_call_ran_twice(books.ledger(task_id))
    stack.wait_for(lambda state: state.all_ready)
    await assert_replays(stack, [f"task-{task_id}"])


async def test_whoever_raises_it_and_whoever_is_not_to_wait(caller: Caller, books: Books) -> None:
    # Before its first step a task fails, unless it is to wait; one that is not to fails at any.
    await _cap(caller, NOTHING)
    for limits, code in (({}, "OVL-3001"), ({"on_budget": "fail"}, "OVL-3001")):
        task = await caller.ended(await caller.submit(say("x"), model=MODEL, limits=limits))
        assert task["error"]["code"] == code
    waiting = await caller.submit(say("Waited."), model=MODEL, limits={"on_budget": "wait"})
    cancelled = await caller.submit(say("Never."), model=MODEL, limits={"on_budget": "wait"})
    for task_id in (waiting, cancelled):
        await _paused(caller, task_id, "budget_exhausted")
    await caller.cancel(cancelled)
    assert (await caller.ended(cancelled))["status"] == "cancelled"
    # As if a new period had begun, or another had raised it: nobody told the tasks.
    books.rows(
        "with a as (update budget_rules set cap_usd = 5 where organisation_id = %s returning 1)"
        " update budgets set cap_usd = 5 where organisation_id = %s and window_key <> ''"
        " returning 1",
        caller.organisation_id,
        caller.organisation_id,
    )
    task = await caller.ended(waiting)
    assert (task["status"], task["answer"]) == ("succeeded", "Waited.")
    # In the middle, too, if it is to fail.
    task_id = await caller.submit(**_question(), limits={"on_budget": "fail"})
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: any(each.type == "step.started" for each in seen.events))
        await _cap(caller, NOTHING)
        await watcher.to_end()
    assert (await caller.task(task_id))["error"]["code"] == "OVL-3001"


async def test_the_budget_of_a_task_itself_is_waited_for_if_asked_and_can_be_raised(
    caller: Caller, books: Books
) -> None:
    # A window of 131,072 tokens at its dearest: enough for the first call, not for the second.
    worst = (Decimal(131_072 - 128) * 10 + 128 * 40) / 100_000_000
    limits = {"max_cost_usd": f"{worst:.9f}", "on_budget": "wait"}
    task_id = await caller.submit(**_question("Paid."), limits=limits)
    told = (await _paused(caller, task_id, "budget_exhausted"))["pause_reason"]["budget"]
    assert (told["scope"], told["subject"]) == ("task", task_id)
    wanted = {"scope": "task", "subject": task_id, "cap_usd": "1"}
    raised = (await caller.request("POST", "/v1/budgets", json=wanted)).json()["budgets"][0]
    assert (raised["id"], raised["cap_usd"]) == (told["id"], "1.000000000")
    task = await caller.ended(task_id)
    assert (task["status"], task["answer"], task["max_cost_usd"]) == (
        "succeeded",
        "Paid.",
        "1.000000000",
    )
    books.assert_nothing_held(caller.organisation_id)
    for subject in (task_id, str(caller.key_id), "nothing"):
        with pytest.raises(Refused) as refused:
            await caller.request("POST", "/v1/budgets", json=wanted | {"subject": subject})
        assert refused.value.status == 404
    # Python's zone, and not Postgres': nothing is set, and the list is what it was.
    zoned = {"scope": "user", "subject": "*", "cap_usd": "1", "time_zone": "localtime"}
    before = (await caller.request("GET", "/v1/budgets")).json()
    with pytest.raises(Refused) as refused:
        await caller.request("POST", "/v1/budgets", json=zoned)
    assert refused.value.status == 422
    assert (await caller.request("GET", "/v1/budgets")).json() == before


async def test_a_child_pauses_for_its_parent_and_the_question_is_not_lost(caller: Caller) -> None:
    spec = {"name": "below", "model": MODEL, "cache": "off"}
    await caller.request("POST", "/v1/agents", json=spec)
    question = f"{time.monotonic_ns()} " + ask("below", say("From below."), pace_ms=25) + say("Up.")
    task_id = await caller.submit(
        question, model=MODEL, cache="off", tools=[{"name": "agent.below", "must_call": True}]
    )
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: any(each.type == "step.started" for each in seen.events))
        await _cap(caller, NOTHING)
        await watcher.until(lambda seen: any(each.type == "child.started" for each in seen.events))
        (child,) = (await caller.task(task_id))["children"]
        await _paused(caller, child["id"], "budget_exhausted")
        why = (await caller.request("GET", f"/v1/tasks/{task_id}/why")).json()
        assert "children_running" in [each["code"] for each in why["reasons"]]
        await _cap(caller, "5")
        assert (await watcher.to_end()).type == "task.succeeded"
    assert (await caller.task(task_id))["answer"] == "Up."


@pytest.mark.parametrize("limits", [{"on_budget": "never"}, {"on_budget": None}])
async def test_what_is_no_way_to_wait_is_refused(caller: Caller, limits: dict[str, Any]) -> None:
    answer = await caller.http.post("/v1/tasks", json={"input": "x", "limits": limits})
    assert answer.status_code == 422
