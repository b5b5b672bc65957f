"""Agents that ask agents: one tree, one budget, nothing done twice, and no circles."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from tests.chaos.victims import kill, pids_of
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, ask, say, words
from tests.integration.tasks.histories import assert_replays
from workflows.client import connect_kwargs

MODEL = "scripted"


async def agent(caller: Caller, name: str, **fields: Any) -> dict[str, Any]:
    """Apply an agent."""
    body = {"name": name, "model": MODEL, "cache": "off", **fields}
    made: dict[str, Any] = (await caller.request("POST", "/v1/agents", json=body)).json()
    return made


async def children(caller: Caller, task_id: str) -> list[dict[str, Any]]:
    """Read a task's children, oldest first."""
    page = (await caller.request("GET", "/v1/tasks", params={"parent": task_id})).json()
    found: list[dict[str, Any]] = page["tasks"][::-1]
    return found


async def has_child(caller: Caller, task_id: str) -> str:
    """Wait until a task has a child."""
    while not (found := await children(caller, task_id)):
        await asyncio.sleep(0.05)
    return str(found[0]["id"])


async def test_a_sub_agents_answer_is_what_the_tool_says(caller: Caller, books: Books) -> None:
    await agent(caller, "geo", system=say("Paris."), description="Knows capitals.")
    task = await caller.answered(
        ask("geo", "The capital of France?") + say("It is Paris."),
        model=MODEL,
        tools=[{"name": "agent.geo", "must_call": True}],
        user="ada",
        tags={"project": "x"},
    )
    assert task["answer"] == "It is Paris."
    (step, _) = await caller.steps(task["id"])
    assert step["tool_result"] == "Paris."
    (child,) = task["children"]
    assert child["agent"] == "geo@1"
    assert child["step"] == 1
    assert child["status"] == "succeeded"
    own = await caller.task(child["id"])
    assert (own["parent_task_id"], own["root_task_id"]) == (task["id"], task["id"])
    assert (own["user"], own["tags"], own["answer"]) == ("ada", {"project": "x"}, "Paris.")
    # The ledger's rows of both are the tree's, and callers' tasks are listed without children.
    rows = books.ledger(task["id"], child["id"])
    assert task["tree"]["tasks"] == 2
    assert float(task["tree"]["cost_usd"]) == float(sum(row["billed_usd"] for row in rows))
    tokens = sum(
        row["uncached_input_tokens"] + row["cached_input_tokens"] + row["output_tokens"]
        for row in rows
    )
    assert task["tree"]["tokens"] == tokens
    (view,) = books.rows("select * from spend_by_task_tree where task_id = %s", task["id"])
    assert (view["tasks"], view["calls"]) == (2, 3)
    listed = (await caller.request("GET", "/v1/tasks")).json()["tasks"]
    assert [each["id"] for each in listed] == [task["id"]]
    books.assert_nothing_held(caller.organisation_id)


async def test_a_sub_agent_that_fails_is_an_answer_to_its_parent(caller: Caller) -> None:
    await agent(caller, "broken", system=say("x", unheard_of=1))
    task = await caller.answered(
        ask("broken", "?") + say("It did not work."),
        model=MODEL,
        tools=[{"name": "agent.broken", "must_call": True}],
    )
    (step, _) = await caller.steps(task["id"])
    assert "OVL-1007" in step["tool_result"]
    assert step["tool_calls"][0]["ok"] is False
    assert task["children"][0]["status"] == "failed"


async def test_what_children_use_counts_for_the_parents_cap(caller: Caller, books: Books) -> None:
    """Case 13: the ledger sums the children, and the cap stops the next call."""
    await agent(caller, "worker", system=say(words(30)))
    tools = [{"name": "agent.worker", "max_calls": 3}]
    question = "".join(ask("worker", f"part {part}") for part in "abc") + say("Done.")
    free = await caller.answered(question, model=MODEL, tools=tools, cache="off")
    assert len(free["children"]) == 3
    spent = books.ledger(*[child["id"] for child in free["children"]], free["id"])
    own = free["prompt_tokens"] + free["completion_tokens"]
    assert free["tree"]["tokens"] > own + 300
    assert sum(float(row["billed_usd"]) for row in spent) == pytest.approx(
        float(free["tree"]["cost_usd"])
    )

    capped = await caller.ended(
        await caller.submit(
            question, model=MODEL, tools=tools, cache="off", limits={"max_tokens": 1000}
        )
    )
    assert capped["error"]["code"] == "OVL-3004"
    rows = books.ledger(capped["id"], *[child["id"] for child in capped["children"]])
    assert 0 < len(rows) < len(spent)
    # Nothing began once the cap was used: without its last call the tree is below it.
    totals = [
        row["uncached_input_tokens"] + row["cached_input_tokens"] + row["output_tokens"]
        for row in rows
    ]
    assert sum(totals[:-1]) < 1000 <= capped["tree"]["tokens"] == sum(totals)


async def test_a_tree_never_spends_more_than_its_parents_budget(
    caller: Caller, books: Books
) -> None:
    await agent(caller, "worker", system=say(words(30), pace_ms=2))
    tools = [{"name": "agent.worker", "max_calls": 8}]
    calls = [
        {"tool": "agent.worker", "arguments": {"input": f"part {number}"}} for number in range(8)
    ]
    question = f"[[call text={json.dumps(json.dumps(calls))}]]" + say("Done.")
    worst = 131_072 * 0.40 / 1_000_000
    cap = 2.5 * worst
    task = await caller.ended(
        await caller.submit(
            question,
            model=MODEL,
            tools=tools,
            parallel_tool_calls=8,
            cache="off",
            limits={"max_cost_usd": f"{cap:.9f}"},
        )
    )
    # Two calls at a time fit the budget; the others wait for what those hold.
    assert task["status"] == "succeeded", task
    assert [child["status"] for child in task["children"]] == ["succeeded"] * 8
    (budget,) = books.rows(
        "select cap_usd, spent_usd, held_usd, overage_usd from budgets where scope_id = %s",
        task["id"],
    )
    assert budget["held_usd"] == budget["overage_usd"] == 0
    assert float(budget["spent_usd"]) == float(task["tree"]["cost_usd"])
    assert budget["spent_usd"] <= budget["cap_usd"]
    books.assert_nothing_held(caller.organisation_id)


async def test_a_worker_killed_while_a_child_speaks_repeats_nothing(
    caller: Caller, stack: RunningStack, books: Books
) -> None:
    text = words(60)
    await agent(caller, "slow", system=say(text, pace_ms=10), sampling={"max_tokens": 2000})
    task_id = await caller.submit(
        ask("slow", "Speak.") + say("It spoke."),
        model=MODEL,
        tools=[{"name": "agent.slow", "must_call": True}],
    )
    child = await has_child(caller, task_id)
    async with caller.watch(child) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 40)
        kill(await pids_of("worker", stack, child))
        await watcher.to_end()
    task = await caller.ended(task_id)
    assert task["status"] == "succeeded", task
    assert [each["id"] for each in task["children"]] == [child]
    assert (await caller.steps(task_id))[0]["tool_result"] == text
    rows = books.ledger(task_id, child)
    books.assert_no_call_ran_twice(rows)
    books.assert_nothing_held(caller.organisation_id)
    await assert_replays(stack, [f"task-{task_id}", f"task-{child}"])


async def test_cancelling_the_parent_ends_and_settles_its_children(
    caller: Caller, books: Books
) -> None:
    await agent(caller, "slow", system=say(words(400), pace_ms=20), sampling={"max_tokens": 4000})
    task_id = await caller.submit(
        ask("slow", "Speak.") + say("never"),
        model=MODEL,
        tools=[{"name": "agent.slow", "must_call": True}],
    )
    child = await has_child(caller, task_id)
    async with caller.watch(child) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 20)
        await caller.cancel(task_id)
        assert (await watcher.to_end()).type == "task.cancelled"
    task = await caller.ended(task_id)
    assert task["status"] == "cancelled"
    assert (await caller.task(child))["finished_at"] <= task["finished_at"]
    assert float(task["tree"]["cost_usd"]) > float(task["cost_usd"])
    books.assert_nothing_held(caller.organisation_id)


async def test_a_parents_deadline_is_its_childrens(caller: Caller, books: Books) -> None:
    await agent(caller, "slow", system=say(words(400), pace_ms=20), sampling={"max_tokens": 4000})
    task = await caller.ended(
        await caller.submit(
            ask("slow", "Speak.") + say("never"),
            model=MODEL,
            tools=[{"name": "agent.slow", "must_call": True}],
            limits={"deadline_seconds": 3},
        )
    )
    assert task["error"]["code"] == "OVL-3005"
    assert task["children"][0]["status"] in ("failed", "cancelled")
    books.assert_nothing_held(caller.organisation_id)


async def test_a_pause_reaches_down(caller: Caller) -> None:
    await agent(
        caller,
        "looper",
        tools=[{"name": "calculator", "max_calls": 30}],
        system='[[call text="{\\"tool\\": \\"calculator\\", \\"expression\\": \\"{next}+0\\"}" '
        "pace_ms=2]]" + say("Done."),
        limits={"max_steps": 40},
    )
    task_id = await caller.submit(
        ask("looper", "Count.") + say("Counted."),
        model=MODEL,
        tools=[{"name": "agent.looper", "must_call": True}],
    )
    child = await has_child(caller, task_id)
    await caller.request("POST", f"/v1/tasks/{task_id}/pause")
    assert (await caller.task(child))["status"] == "paused"
    await asyncio.sleep(1)
    standing = (await caller.task(child))["steps"]
    await asyncio.sleep(1)
    assert (await caller.task(child))["steps"] == standing < 31
    await caller.request("POST", f"/v1/tasks/{task_id}/resume")
    task = await caller.ended(task_id)
    assert task["status"] == "succeeded", task
    assert (await caller.task(child))["steps"] == 31


async def test_a_parent_terminated_in_temporal_takes_its_children_along(
    caller: Caller, stack: RunningStack, books: Books
) -> None:
    await agent(caller, "slow", system=say(words(400), pace_ms=20), sampling={"max_tokens": 4000})
    task_id = await caller.submit(
        ask("slow", "Speak.") + say("never"),
        model=MODEL,
        tools=[{"name": "agent.slow", "must_call": True}],
    )
    child = await has_child(caller, task_id)
    async with caller.watch(child) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 20)
        settings = stack.settings
        client = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
        await client.get_workflow_handle(f"task-{task_id}").terminate("by the test")
        assert (await watcher.to_end()).type == "task.cancelled"
    assert (await caller.ended(task_id))["error"]["code"] == "OVL-3003"
    books.assert_nothing_held(caller.organisation_id)


async def test_a_child_terminated_in_temporal_is_a_failed_answer(
    caller: Caller, stack: RunningStack, books: Books
) -> None:
    await agent(caller, "slow", system=say(words(400), pace_ms=20), sampling={"max_tokens": 4000})
    task_id = await caller.submit(
        ask("slow", "Speak.") + say("It was ended."),
        model=MODEL,
        tools=[{"name": "agent.slow", "must_call": True}],
    )
    child = await has_child(caller, task_id)
    async with caller.watch(child) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 20)
        settings = stack.settings
        client = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
        await client.get_workflow_handle(f"task-{child}").terminate("by the test")
    task = await caller.ended(task_id)
    assert task["status"] == "succeeded", task
    assert "OVL-3003" in (await caller.steps(task_id))[0]["tool_result"]
    books.assert_nothing_held(caller.organisation_id)


async def test_a_person_decides_about_a_sub_agent(caller: Caller) -> None:
    await agent(caller, "geo", system=say("Rome."))
    task_id = await caller.submit(
        ask("geo", "The capital of France?") + say("It is Rome."),
        model=MODEL,
        tools=[{"name": "agent.geo", "must_call": True, "approval": "always"}],
    )
    path = f"/v1/tasks/{task_id}/approvals"
    while not (asked := (await caller.request("GET", path)).json()["approvals"]):
        await asyncio.sleep(0.05)
    assert await children(caller, task_id) == []
    decision = {"decision": "approve", "arguments": {"input": "The capital of Italy?"}}
    await caller.request("POST", f"{path}/{asked[0]['call_id']}", json=decision)
    task = await caller.ended(task_id)
    assert task["status"] == "succeeded", task
    (step, _) = await caller.steps(task_id)
    assert step["tool_result"].endswith("Rome.")
    assert (await caller.task(task["children"][0]["id"]))["preview"] == "The capital of Italy?"


async def test_a_task_keeps_to_the_agents_it_was_told_of(caller: Caller) -> None:
    await agent(caller, "inner", system=say("old"))
    await agent(
        caller,
        "outer",
        system=ask("inner@1", "?") + say("told"),
        tools=[{"name": "agent.inner@1", "must_call": True}],
    )
    await agent(caller, "inner", system=say("new"))
    question = ask("outer", "?", turn=1) + ask("inner", "!", turn=2) + say("end")
    tools = [{"name": "agent.outer", "must_call": True}, {"name": "agent.inner", "must_call": True}]
    task = await caller.answered(question, model=MODEL, tools=tools)
    first, second = [await caller.task(child["id"]) for child in task["children"]]
    assert (first["agent"], second["agent"], second["answer"]) == ("outer@1", "inner@2", "new")
    (grandchild,) = first["children"]
    assert grandchild["agent"] == "inner@1"
    below = await caller.task(grandchild["id"])
    assert (below["root_task_id"], below["answer"]) == (task["id"], "old")
    assert task["tree"]["tasks"] == 4


async def test_circles_are_refused_where_they_would_close(caller: Caller) -> None:
    with pytest.raises(Refused) as alone:
        await agent(caller, "self", tools=[{"name": "agent.self"}])
    assert alone.value.problem["errors"][0]["code"] == "cycle"
    await agent(caller, "a")
    await agent(caller, "b", tools=[{"name": "agent.a"}])
    await agent(caller, "c", tools=[{"name": "agent.b"}])
    with pytest.raises(Refused) as circle:
        await agent(caller, "a", tools=[{"name": "calculator"}, {"name": "agent.c"}])
    (problem,) = circle.value.problem["errors"]
    assert (circle.value.status, problem["code"]) == (422, "cycle")
    assert problem["pointer"] == "/tools/1/name"
    assert "a → c@1 → b@1 → a" in problem["detail"]
    # An older version that asks nobody closes no circle.
    await agent(caller, "d", tools=[{"name": "agent.a@1"}])
    assert (await agent(caller, "a", tools=[{"name": "agent.d"}]))["version"] == 2
    with pytest.raises(Refused) as task:
        await caller.submit("?", agent="c", tools=[{"name": "agent.nobody"}])
    assert task.value.problem["errors"][0]["code"] == "not_allowed"


async def test_a_circle_that_closed_meanwhile_is_refused_at_submission(
    caller: Caller, books: Books
) -> None:
    """Two agents that were applied at the same moment did not see each other."""
    await agent(caller, "x")
    await agent(caller, "y", tools=[{"name": "agent.x"}])
    books.rows(
        "insert into agents (organisation_id, name, version, spec, digest, created_by)"
        " values (%s, 'x', 2, %s, 'd', %s) returning name",
        caller.organisation_id,
        json.dumps({"tools": [{"name": "agent.y"}]}),
        caller.key_id,
    )
    for fields in ({"agent": "x"}, {"tools": [{"name": "agent.y"}]}):
        with pytest.raises(Refused) as refused:
            await caller.submit("?", model=MODEL, **fields)
        assert refused.value.problem["errors"][0]["code"] == "cycle", refused.value.problem


async def test_lines_of_agents_have_an_end(caller: Caller) -> None:
    await agent(caller, "n0")
    for number in range(1, 7):
        await agent(caller, f"n{number}", tools=[{"name": f"agent.n{number - 1}"}])
    with pytest.raises(Refused) as refused:
        await agent(caller, "n8", tools=[{"name": "agent.n6"}, {"name": "agent.n7"}])
    assert refused.value.problem["errors"][0]["code"] == "not_allowed"
    await agent(caller, "n7", tools=[{"name": "agent.n6"}])
    with pytest.raises(Refused) as deep:
        await caller.submit("?", model=MODEL, tools=[{"name": "agent.n7"}])
    assert deep.value.problem["errors"][0]["code"] == "too_deep"
    assert await caller.submit("?", tools=[{"name": "agent.n6"}], model=MODEL)


async def test_tools_named_agent_cannot_be_registered(caller: Caller) -> None:
    document = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {}}
    body = {"name": "agent", "kind": "openapi", "document": document}
    with pytest.raises(Refused) as refused:
        await caller.request("POST", "/v1/tools", json=body)
    assert refused.value.status == 422


async def test_another_organisations_agents_are_nobodys_tools(
    caller: Caller, stack: RunningStack
) -> None:
    other = Caller.made(stack.admin_url, stack.state().urls["api"])
    name = f"theirs{uuid4().hex[:6]}"
    await agent(other, name)
    with pytest.raises(Refused) as refused:
        await caller.submit("?", model=MODEL, tools=[{"name": f"agent.{name}"}])
    assert refused.value.problem["errors"][0]["code"] == "not_allowed"
    await other.http.aclose()
