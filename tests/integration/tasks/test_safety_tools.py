"""What tools answer and what a model wants of them, as a safety policy lets it pass."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.client import Client

from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, choose, say
from tests.integration.tasks.histories import assert_replays
from tests.integration.tasks.policies import (
    PEOPLE,
    SetPolicy,
    address,
    decisions,
    left_in_clear,
)
from tests.integration.tasks.services import DOCUMENT, HttpService
from tests.integration.tasks.test_approvals import decide, waiting
from tests.integration.tasks.test_context import _ready
from tests.integration.tasks.test_tools import begin, register

MODEL = "scripted"
CALCULATE = choose({"tool": "calculator", "expression": "6*7"})
TOOLS = [{"name": "calculator", "must_call": True}]


def sums(action: str, place: str = "tool_result") -> dict[str, Any]:
    """A rule about the results of sums, or about what is asked for."""
    pattern = r"= \d+" if place == "tool_result" else r"\d\*\d"
    return {
        "id": "sums",
        "kind": "deny_list",
        "patterns": [pattern],
        "on": [place],
        "action": action,
    }


async def calculated(caller: Caller, answer: str = "Done.", cache: str = "off") -> str:
    return await caller.submit(CALCULATE + say(answer), model=MODEL, tools=TOOLS, cache=cache)


async def test_an_answer_of_a_tool_is_redacted_withheld_or_waits_for_a_person(
    caller: Caller, stack: RunningStack, books: Books, policy: SetPolicy
) -> None:
    # Redacted: its token is what is kept and read, and comes back for the caller.
    await policy(sums("redact"))
    redacted = await caller.ended(await calculated(caller))
    (first, _) = await caller.steps(redacted["id"])
    assert (first["tool_result"], first["chosen_calls"][0]["ok"]) == ("6*7 = 42", True)
    (row,) = books.rows("select result_text from tool_calls where task_id = %s", redacted["id"])
    assert row["result_text"] == "6*7 <DENIED_1>"
    assert decisions(books, redacted["id"]) == [(1, "tool_result", "redact", ["sums"])]

    # Blocked: the model is told so, and goes on.
    await policy(sums("block"))
    blocked = await caller.ended(await calculated(caller))
    assert blocked["status"] == "succeeded"
    (first, _) = await caller.steps(blocked["id"])
    assert first["tool_result"] == "the answer is withheld: rule 'sums' blocks it"
    assert first["chosen_calls"][0]["ok"] is False

    # Held: sealed until a person decides; the tool is not called again for that.
    await policy(sums("require_approval"))
    approved_id, refused_id = await calculated(caller), await calculated(caller)
    for task_id, decision in ((approved_id, "approve"), (refused_id, "refuse")):
        asked = await waiting(caller, task_id)
        assert asked["call_id"] == f"{task_id}:1:calculator:answer"
        assert asked["arguments"]["rule"] == "sums"
        assert books.rows("select 1 from tool_calls where task_id = %s", task_id) == []
        await decide(caller, task_id, asked["call_id"], decision=decision)
    approved, refused = await caller.ended(approved_id), await caller.ended(refused_id)
    (first, _) = await caller.steps(approved_id)
    assert (approved["status"], first["tool_result"]) == ("succeeded", "6*7 = 42")
    (first, _) = await caller.steps(refused_id)
    assert refused["status"] == "succeeded"
    assert "a person refused it" in first["tool_result"]

    # What the model wants of a tool is output: it can be blocked, and a person asked about it.
    await policy(sums("require_approval", "output"))
    # Each time: what a person allowed is no answer to the next one's question.
    wanted_ids = []
    for _ in range(2):
        wanted_ids.append(wanted_id := await calculated(caller, cache="auto"))
        asked = await waiting(caller, wanted_id)
        assert (asked["tool"], asked["arguments"]) == ("calculator", {"expression": "6*7"})
        await decide(caller, wanted_id, asked["call_id"], decision="approve")
        assert (await caller.ended(wanted_id))["status"] == "succeeded"
    await policy(sums("block", "output"))
    stopped = await caller.ended(await calculated(caller))
    assert (stopped["status"], stopped["error"]["code"]) == ("failed", "OVL-3008")
    assert stopped["error"]["message"] == "rule 'sums' blocked the tool's arguments"
    assert float(stopped["cost_usd"]) > 0
    assert books.rows("select 1 from tool_calls where task_id = %s", stopped["id"]) == []
    books.assert_nothing_held(caller.organisation_id)
    ids = (redacted["id"], blocked["id"], approved_id, refused_id, *wanted_ids, stopped["id"])
    await assert_replays(stack, [f"task-{task_id}" for task_id in ids])


async def test_what_is_retrieved_is_redacted_or_left_out(
    caller: Caller, books: Books, policy: SetPolicy
) -> None:
    ada = address()
    await caller.request("POST", "/v1/collections", json={"name": "people"})
    path = "/v1/collections/people/documents"
    for name, text in (("ada", f"Ada's address is {ada}."), ("bird", "Project Bluebird is late.")):
        body = {"external_id": name, "title": name, "text": text}
        sent = (await caller.request("POST", path, json=body)).json()
        await _ready(caller, "people", sent["id"])
    bird = {"id": "bird", "kind": "deny_list", "words": ["Bluebird"], "action": "block"}
    await policy(PEOPLE, bird | {"on": ["passage"]})
    question = "What is the address of Ada, and how is the project? " + say("I cannot say.")
    task = await caller.answered(question, model=MODEL, collections=["people"], passages=2)
    (step,) = await caller.steps(task["id"])
    kinds = [part["kind"] for part in step["provenance"]]
    assert kinds.count("passage") == 1
    (found,) = decisions(books, task["id"])
    assert found[:3] == (1, "passage", "block")
    assert sorted(found[3]) == ["bird", "people"]
    # The prompt has a token; only the document itself has the address.
    assert set(left_in_clear(books, ada)) <= {"documents", "chunks"}


async def test_a_tool_is_not_called_again_because_its_answer_cannot_be_judged(
    caller: Caller, stack: RunningStack, policy: SetPolicy, outside_ports: tuple[int, int]
) -> None:
    judged = {"id": "judged", "kind": "moderation", "model": "nobody", "on": ["tool_result"]}
    await policy(judged | {"action": "block"})
    client = await Client.connect(stack.settings.temporal_address)
    with HttpService(outside_ports[0]) as service:
        await register(
            caller, name="svc", kind="openapi", document=DOCUMENT, base_url=service.url,
            operations=["order"],
        )  # fmt: skip
        order = {"body": {"item": "x", "count": 1}}
        task_id = await begin(caller, "svc.order", order, max_attempts=1)
        handle = client.get_workflow_handle(f"task-{task_id}")
        while True:
            pending = (await handle.describe()).raw_description.pending_activities
            if any(each.attempt > 2 for each in pending):
                break
            await asyncio.sleep(0.05)
        await caller.request("POST", f"/v1/tasks/{task_id}/cancel")
        assert (await caller.ended(task_id))["status"] == "cancelled"
        assert len(service.seen("/orders")) == 1
