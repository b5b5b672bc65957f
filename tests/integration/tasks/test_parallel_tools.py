"""Several tool calls in one step, on the real stack: at once, each once, told in their order."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from tests.chaos.victims import kill
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, choose, choose_all, say
from tests.integration.tasks.histories import assert_replays
from tests.integration.tasks.services import DOCUMENT, HttpService
from workflows.client import SEARCH_STATUS, connect_kwargs
from workflows.decisions import WAITING

MODEL = "scripted"
REAL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def service(outside_ports: tuple[int, int]) -> Iterator[HttpService]:
    with HttpService(outside_ports[0]) as running:
        yield running
        running.hold.clear()


def calculate(expression: str) -> dict[str, Any]:
    return {"tool": "calculator", "expression": expression}


def order(item: str) -> dict[str, Any]:
    return {"tool": "svc.order", "arguments": {"body": {"item": item, "count": 1}}}


FORECAST = {"tool": "svc.forecast", "arguments": {"city": "Rome"}}


async def begin(caller: Caller, *choices: str, names: tuple[str, ...], **fields: Any) -> str:
    uses = [{"name": name, "max_calls": 4} | fields.pop(name, {}) for name in names]
    body = {"model": MODEL, "tools": uses, "parallel_tool_calls": 4, "cache": "off"} | fields
    return await caller.submit(f"{uuid4()} " + "".join(choices) + say("Done."), **body)


async def register(caller: Caller, service: HttpService) -> None:
    fields = {"name": "svc", "kind": "openapi", "document": DOCUMENT, "base_url": service.url}
    await caller.request("POST", "/v1/tools", json=fields)


async def until(holds: Callable[[], Any], *, limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def told(step: dict[str, Any]) -> list[tuple[str, bool | None, str | None]]:
    return [(call["name"], call["ok"], call["result"]) for call in step["chosen_calls"]]


async def replayed(stack: RunningStack, task_id: str) -> None:
    await assert_replays(stack, [f"task-{task_id}"])


async def test_calls_of_a_step_are_made_at_once_and_told_in_the_order_of_the_choice(
    caller: Caller, service: HttpService, stack: RunningStack
) -> None:
    await register(caller, service)
    before = len(service.orders)
    service.hold.set()
    task_id = await begin(
        caller,
        choose_all(order("tea"), calculate("6*7"), order("milk")),
        choose({"tool": "answer"}),
        names=("calculator", "svc.order"),
    )
    async with caller.watch(task_id) as watcher:
        # Both are under way, and the quick one between them is over.
        await until(lambda: len(service.orders) == before + 2)
        await watcher.until(
            lambda seen: (
                [e.payload["name"] for e in seen.events if e.type == "tool.completed"]
                == ["calculator"]
            )
        )
        (step,) = await caller.steps(task_id)
        assert [call["ok"] for call in step["chosen_calls"]] == [None, True, None]
        service.hold.clear()
        await watcher.to_end()
    watcher.assert_once_and_in_order()
    first, second, _ = await caller.steps(task_id)
    assert (first["tool_call"], first["tool_result"]) == (None, None)
    names = [call["name"] for call in first["chosen_calls"]]
    assert names == ["svc.order", "calculator", "svc.order"]
    assert all(call["ok"] and call["duration_ms"] >= 0 for call in first["chosen_calls"])
    assert first["chosen_calls"][1]["result"] == "6*7 = 42"
    ids = [call["id"] for call in first["chosen_calls"]]
    assert [id_.split(":")[1] for id_ in ids] == ["1.1", "1.2", "1.3"]
    assert {call["id"] for call in first["tool_calls"]} == set(ids)
    assert [call["attempt"] for call in first["tool_calls"]] == [1, 1, 1]
    sources = [part["source"] for part in second["provenance"] if part["kind"] == "tool_result"]
    assert sources == ["step 1, call 1", "step 1, call 2", "step 1, call 3"]
    (completed,) = [e for e in watcher.events if e.type == "step.completed" and e.step == 1]
    assert [call["name"] for call in completed.payload["tool_call"]] == names
    await replayed(stack, task_id)


async def test_equal_calls_are_one_and_what_was_asked_before_or_too_often_is_not_made(
    caller: Caller, books: Books, stack: RunningStack
) -> None:
    task_id = await begin(
        caller,
        choose_all(calculate("1+1"), calculate("1+1"), calculate("2+2")),
        choose_all(calculate("2+2"), calculate("3+3"), calculate("4+4")),
        choose({"tool": "answer"}),
        names=("calculator",),
        calculator={"max_calls": 5},
    )
    task = await caller.ended(task_id)
    assert (task["status"], task["answer"], task["steps"]) == ("succeeded", "Done.", 4)
    first, second, *_ = await caller.steps(task_id)
    assert [result for _, _, result in told(first)] == ["1+1 = 2", None, "2+2 = 4"]
    assert [result for _, _, result in told(second)] == [None, "3+3 = 6", "4+4 = 8"]
    rows = books.rows("select call_id from tool_calls where task_id = %s", task_id)
    assert len(rows) == 4
    await replayed(stack, task_id)


async def test_of_too_many_calls_the_first_are_made_and_the_model_is_told_of_the_others(
    caller: Caller, stack: RunningStack
) -> None:
    task_id = await begin(
        caller,
        choose_all(*(calculate(f"{n}+0") for n in range(4))),
        choose({"tool": "answer"}),
        names=("calculator", "search"),
        calculator={"max_calls": 2},
    )
    assert (await caller.ended(task_id))["status"] == "succeeded"
    first, second, *_ = await caller.steps(task_id)
    assert [result for _, _, result in told(first)] == ["0+0 = 0", "1+0 = 1", None, None]
    sources = [part["source"] for part in second["provenance"] if part["kind"] == "tool_result"]
    assert sources == [f"step 1, call {n}" for n in range(1, 5)]
    await replayed(stack, task_id)


async def test_a_call_that_fails_is_an_answer_beside_the_others(
    caller: Caller, service: HttpService
) -> None:
    await register(caller, service)
    task_id = await begin(
        caller,
        choose_all({"tool": "svc.down", "arguments": {}}, calculate("1/0"), calculate("6*7")),
        names=("calculator", "svc.down"),
        **{"svc.down": {"max_attempts": 1}},
    )
    assert (await caller.ended(task_id))["status"] == "succeeded"
    down, divided, product = told((await caller.steps(task_id))[0])
    assert (down[1], divided[1]) == (False, False)
    assert "not available: it answered 500" in str(down[2])
    assert product == ("calculator", True, "6*7 = 42")


async def approvals(caller: Caller, task_id: str) -> list[dict[str, Any]]:
    answer = await caller.request("GET", f"/v1/tasks/{task_id}/approvals")
    found: list[dict[str, Any]] = answer.json()["approvals"]
    return found


async def test_calls_that_need_a_person_wait_at_the_same_time_each_for_its_own_word(
    caller: Caller, stack: RunningStack
) -> None:
    client = await Client.connect(stack.settings.temporal_address, **connect_kwargs(stack.settings))

    async def status_of(task_id: str) -> object:
        described = await client.get_workflow_handle(f"task-{task_id}").describe()
        return described.typed_search_attributes.get(SEARCH_STATUS)

    task_id = await begin(
        caller,
        choose_all(calculate("1+1"), calculate("2+2"), calculate("3+3")),
        names=("calculator",),
        calculator={"approval": {"when": {"expression": "[12]*"}}, "max_calls": 3},
    )
    while len(asked := await approvals(caller, task_id)) < 2:
        await asyncio.sleep(0.05)
    while told((await caller.steps(task_id))[0])[2][1] is None:
        await asyncio.sleep(0.05)
    why = (await caller.request("GET", f"/v1/tasks/{task_id}/why")).json()
    assert [each["code"] for each in why["reasons"]].count("waiting_for_person") == 2
    one, two = sorted(asked, key=lambda each: str(each["call_id"]))

    async def decide(call: dict[str, Any], **decision: Any) -> None:
        path = f"/v1/tasks/{task_id}/approvals/{call['call_id']}"
        await caller.request("POST", path, json=decision)

    await decide(two, decision="refuse", reason="not that one")
    while told((await caller.steps(task_id))[0])[1][1] is None:
        await asyncio.sleep(0.05)
    # One of them still waits, and so does the task.
    assert await status_of(task_id) == WAITING
    assert (await caller.task(task_id))["waiting_for"] == "approval"
    await decide(one, decision="approve", arguments={"expression": "5*5"})
    assert (await caller.ended(task_id))["status"] == "succeeded"
    assert told((await caller.steps(task_id))[0]) == [
        ("calculator", True, '(a person changed the arguments to {"expression": "5*5"}) 5*5 = 25'),
        ("calculator", False, "a person refused this call: not that one"),
        ("calculator", True, "3+3 = 6"),
    ]
    await replayed(stack, task_id)


async def test_cancelled_with_one_call_under_way_and_one_waiting(
    caller: Caller, service: HttpService, books: Books, stack: RunningStack
) -> None:
    await register(caller, service)
    before = len(service.orders)
    service.hold.set()
    task_id = await begin(
        caller,
        choose_all(order("tea"), calculate("1+1"), calculate("2+2")),
        names=("calculator", "svc.order"),
        calculator={"approval": {"when": {"expression": "1*"}}},
    )
    await until(lambda: len(service.orders) == before + 1)
    while not await approvals(caller, task_id):
        await asyncio.sleep(0.05)
    await caller.cancel(task_id)
    assert (await caller.ended(task_id))["status"] == "cancelled"
    service.hold.clear()
    (step,) = await caller.steps(task_id)
    assert told(step)[1] == ("calculator", None, None)
    books.assert_nothing_held(caller.organisation_id)
    await replayed(stack, task_id)


async def test_what_was_done_when_the_worker_dies_is_not_done_again_and_the_rest_once(
    caller: Caller, service: HttpService, stack: RunningStack, books: Books
) -> None:
    await register(caller, service)
    before, asked = len(service.orders), len(service.seen("/forecast"))
    service.hold.set()
    task_id = await begin(
        caller,
        choose_all(order("tea"), FORECAST, order("milk")),
        choose({"tool": "answer"}),
        names=("svc.order", "svc.forecast"),
    )
    async with caller.watch(task_id) as watcher:
        await until(lambda: len(service.orders) == before + 2)
        await watcher.until(lambda seen: "tool.completed" in [e.type for e in seen.events])
        kill(await workers_at(stack, task_id, pending=2))
        service.hold.clear()
        last = await watcher.to_end()
    assert last.type == "task.succeeded", last
    watcher.assert_once_and_in_order()
    first, *_ = await caller.steps(task_id)
    orders = [call for call in first["tool_calls"] if call["name"] == "svc.order"]
    forecasts = [call for call in first["tool_calls"] if call["name"] == "svc.forecast"]
    # Finished before: neither asked for nor written down again.
    assert len(service.seen("/forecast")) == asked + 1
    assert [call["attempt"] for call in forecasts] == [1]
    # Under way: made again under the same keys, so done once each.
    assert min(call["attempt"] for call in orders) > 1
    keys = [headers["idempotency-key"] for headers in service.seen("/orders")]
    assert len({key for key in keys if key.startswith(task_id)}) == 2
    assert len([key for key in keys if key.startswith(task_id)]) == 4
    assert [body["item"] for body in service.orders.values()][before:] in (
        ["tea", "milk"],
        ["milk", "tea"],
    )
    results = [json.loads(str(result)) for _, _, result in told(first)]
    assert [next(iter(result)) for result in results] == ["order", "city", "order"]
    books.assert_no_call_ran_twice(books.ledger(task_id))
    books.assert_nothing_held(caller.organisation_id)
    await replayed(stack, task_id)


async def workers_at(stack: RunningStack, task_id: str, *, pending: int) -> list[int]:
    """Return the workers that make a task's calls now."""
    client = await Client.connect(stack.settings.temporal_address)
    described = await client.get_workflow_handle(f"task-{task_id}").describe()
    running = described.raw_description.pending_activities
    assert len(running) == pending
    return sorted({int(each.last_worker_identity.partition("@")[0]) for each in running})


def _request(**fields: Any) -> dict[str, Any]:
    question = (
        f"{uuid4()} "
        + choose_all(calculate("12*7"), calculate("84/2"))
        + choose_all(calculate("1+1"), calculate("12*7"))
        + choose({"tool": "answer"})
        + say("It is 84, and 42.")
    )
    body = {
        "input": question,
        "model": MODEL,
        "tools": [{"name": "calculator", "max_calls": 9}],
        "parallel_tool_calls": 3,
    }
    return body | fields


async def fork(caller: Caller, task_id: str, **body: Any) -> str:
    headers = {"Idempotency-Key": str(uuid4())}
    answer = await caller.request("POST", f"/v1/tasks/{task_id}/fork", json=body, headers=headers)
    return str(answer.json()["id"])


@pytest.mark.parametrize("from_step", [1, 2, 3])
async def test_a_fork_inherits_steps_of_several_calls_as_they_were(
    caller: Caller, books: Books, from_step: int
) -> None:
    parent = await caller.answered(**_request())
    fork_id = await fork(caller, parent["id"], from_step=from_step)
    forked = await caller.ended(fork_id)
    assert (forked["status"], forked["answer"]) == ("succeeded", parent["answer"])
    # Its digests are those of its parent's loop, so the cache knew every call.
    assert {row["outcome"] for row in books.ledger(fork_id)} == {"cached"}
    own, inherited = await caller.steps(parent["id"]), await caller.steps(fork_id)
    assert [told(step) for step in own] == [told(step) for step in inherited]
    path = f"/v1/tasks/{parent['id']}/diff/{fork_id}"
    diff = (await caller.request("GET", path)).json()
    assert (diff["same_answer"], diff["first_difference"]) == (True, None)
    books.assert_nothing_held(caller.organisation_id)


async def test_a_fork_with_another_result_says_of_which_call(caller: Caller, books: Books) -> None:
    parent = await caller.answered(**_request())
    calls = (await caller.steps(parent["id"]))[0]["chosen_calls"]
    wrong = (
        ({"tool_result": "x"}, "/tool_call_id", "missing"),
        ({"tool_result": "x", "tool_call_id": "no"}, "/tool_call_id", "no_tool_call"),
    )
    for body, pointer, code in wrong:
        with pytest.raises(Refused) as refused:
            await fork(caller, parent["id"], from_step=2, **body)
        (problem,) = refused.value.problem["errors"]
        assert (refused.value.status, problem["pointer"], problem["code"]) == (422, pointer, code)
    body = {"from_step": 2, "tool_result": "84/2 = 43"}
    fork_id = await fork(caller, parent["id"], **body, tool_call_id=calls[1]["id"])
    assert (await caller.ended(fork_id))["status"] == "succeeded"
    first, *_ = await caller.steps(fork_id)
    assert [result for _, _, result in told(first)] == ["12*7 = 84", "84/2 = 43"]
    assert first["inherited"] is True
    assert {row["outcome"] for row in books.ledger(fork_id)} == {"succeeded"}
    path = f"/v1/tasks/{parent['id']}/diff/{fork_id}"
    diff = (await caller.request("GET", path)).json()
    assert diff["steps"][0]["differs"] == ["chosen_calls"]
    assert [call["result"] for call in diff["steps"][0]["right"]["chosen_calls"]] == [
        "12*7 = 84",
        "84/2 = 43",
    ]
    again = await fork(caller, fork_id, from_step=3)
    await caller.ended(again)
    assert told((await caller.steps(again))[0]) == told(first)


async def test_an_agent_may_say_how_many_and_a_choice_from_the_cache_is_made_again(
    caller: Caller, books: Books
) -> None:
    name = f"a{uuid4().hex[:8]}"
    spec = {key: value for key, value in _request().items() if key != "input"}
    await caller.request("POST", "/v1/agents", json={"name": name, **spec})
    question = _request()["input"]
    first = await caller.answered(question, agent=name)
    second = await caller.answered(question, agent=name)
    assert {row["outcome"] for row in books.ledger(second["id"])} == {"cached"}
    one, two = await caller.steps(first["id"]), await caller.steps(second["id"])
    assert [told(step) for step in one] == [told(step) for step in two]
    assert len(two[0]["tool_calls"]) == 2
    for most in (0, 17):
        with pytest.raises(Refused) as refused:
            await caller.submit("x", parallel_tool_calls=most)
        assert refused.value.problem["errors"][0]["pointer"] == "/parallel_tool_calls"


async def test_a_real_model_is_held_to_a_list_of_calls(caller: Caller) -> None:
    task = await caller.answered(
        "What is 12*7, and what is 5+6? Use the calculator for both.",
        model=REAL,
        tools=[{"name": "calculator", "must_call": True}],
        parallel_tool_calls=3,
        sampling={"max_tokens": 16},
        cache="off",
    )
    first, *_ = await caller.steps(task["id"])
    assert first["finish_reason"] == "stop"
    choice = json.loads(first["text"])
    assert 1 <= len(choice) <= 3
    assert all(call["tool"] == "calculator" for call in choice)
    assert first["chosen_calls"][0]["result"] is not None
