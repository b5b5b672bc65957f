"""Agents: versions that never change, tasks that name one, and what a request says beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, say

MODEL = "scripted"
EXAMPLE = Path(__file__).resolve().parents[3] / "examples/research.yaml"


async def _apply(caller: Caller, status: int = 201, **spec: Any) -> dict[str, Any]:
    answer = await caller.request("POST", "/v1/agents", json=spec)
    assert answer.status_code == status
    applied: dict[str, Any] = answer.json()
    return applied


async def _versions(caller: Caller, name: str) -> list[int]:
    found = (await caller.request("GET", f"/v1/agents/{name}/versions")).json()
    return [agent["version"] for agent in found["agents"]]


async def test_a_version_is_made_when_what_is_said_changes_and_only_then(caller: Caller) -> None:
    said = {"name": "a", "model": MODEL, "output_schema": {"type": "object", "properties": {}}}
    first = await _apply(caller, **said)
    assert (first["version"], first["created"]) == (1, True)
    assert first["spec"]["output_schema"] == said["output_schema"]
    # A default that is written down says nothing else.
    same = await _apply(caller, 200, **said, cache="auto", limits={})
    assert (same["version"], same["created"]) == (1, False)
    second = await _apply(caller, **said, description="now with words")
    assert (second["version"], second["created_by"]) == (2, str(caller.key_id))
    assert await _versions(caller, "a") == [2, 1]
    newest = (await caller.request("GET", "/v1/agents/a")).json()
    old = (await caller.request("GET", "/v1/agents/a", params={"version": 1})).json()
    assert (newest["spec"]["description"], old["spec"]["description"]) == ("now with words", "")
    listed = (await caller.request("GET", "/v1/agents")).json()["agents"]
    assert [(agent["name"], agent["version"]) for agent in listed] == [("a", 2)]


async def test_many_at_once_make_one_version(caller: Caller) -> None:
    applied = await asyncio.gather(
        *(
            caller.request("POST", "/v1/agents", json={"name": "b", "description": "same"})
            for _ in range(12)
        )
    )
    assert sorted(answer.status_code for answer in applied) == [200] * 11 + [201]
    assert await _versions(caller, "b") == [1]


async def test_a_task_is_what_its_agent_was_and_what_its_request_says(
    caller: Caller, books: Books
) -> None:
    agent = {
        "name": "guide",
        "system": say("By the agent."),
        "model": MODEL,
        "tools": [{"name": "calculator", "must_call": True}],
        "sampling": {"max_tokens": 40, "seed": 7},
        "limits": {"max_steps": 4, "max_tokens": 100_000},
        "cache": "off",
    }
    await _apply(caller, **agent)
    # Lists are replaced as a whole; what is left open within sampling and limits stays.
    task_id = await caller.submit(
        "Hello.", agent="guide", tools=[], sampling={"max_tokens": 30}, limits={"max_steps": 2}
    )
    # It does not change under a task that has been accepted.
    await _apply(caller, **agent | {"system": say("By another.")})
    task = await caller.ended(task_id)
    assert (task["answer"], task["agent"], task["steps"]) == ("By the agent.", "guide@1", 1)
    (row,) = books.rows(
        "select input, agent_name, agent_version from tasks where task_id = %s", task_id
    )
    assert (row["agent_name"], row["agent_version"]) == ("guide", 1)
    stored = row["input"]
    assert (stored["agent"], stored["tools"], stored["cache"]) == ("guide@1", [], "off")
    assert (stored["sampling"]["max_tokens"], stored["sampling"]["seed"]) == (30, 7)
    assert (stored["limits"]["max_steps"], stored["limits"]["max_tokens"]) == (2, 100_000)

    newest = await caller.answered("Hello.", agent="guide", tools=[])
    assert (newest["answer"], newest["agent"]) == ("By another.", "guide@2")
    older = await caller.answered("Hello.", agent="guide@1", tools=[])
    assert (older["answer"], older["agent"]) == ("By the agent.", "guide@1")
    none = await caller.answered(say("x"), model=MODEL)
    assert none["agent"] is None

    spent = await caller.request("GET", "/v1/spend", params={"group_by": "agent"})
    assert {line["group"]: line["calls"] for line in spent.json()["lines"]} == {
        "guide": 3,
        None: 1,
    }
    seen = books.rows(
        "select agent, version, tasks, billed_usd from spend_by_agent"
        " where organisation_id = %s order by agent, version",
        caller.organisation_id,
    )
    assert [(line["agent"], line["version"], line["tasks"]) for line in seen] == [
        ("guide", 1, 2),
        ("guide", 2, 1),
        (None, None, 1),
    ]


async def test_the_same_request_again_is_the_same_task_whatever_its_agent_is_now(
    caller: Caller,
) -> None:
    await _apply(caller, name="c", model=MODEL)
    body = {"input": say("x"), "agent": "c"}
    key = {"Idempotency-Key": str(uuid4())}
    first = await caller.request("POST", "/v1/tasks", json=body, headers=key)
    await _apply(caller, name="c", model=MODEL, description="changed")
    again = await caller.request("POST", "/v1/tasks", json=body, headers=key)
    assert again.json()["id"] == first.json()["id"]
    assert again.json()["replayed"] is True


async def test_an_agent_that_is_not_there_is_told_with_those_that_are(
    caller: Caller, stack: RunningStack
) -> None:
    await _apply(caller, name="here", model=MODEL)
    await _apply(caller, name="gone", model=MODEL)
    await caller.request("POST", "/v1/agents/gone/archive")
    archived = (await caller.request("POST", "/v1/agents/gone/archive")).json()
    assert archived["archived_at"] is not None
    for name in ("nowhere", "here@2", "gone", "gone@1"):
        with pytest.raises(Refused) as refused:
            await caller.submit(say("x"), agent=name)
        assert (refused.value.status, refused.value.problem["code"]) == (404, "OVL-1004")
        assert refused.value.problem["known"] == ["here@1"]
    # Applied again, it is back, in the version it had.
    back = await _apply(caller, 200, name="gone", model=MODEL)
    assert (back["version"], back["archived_at"]) == (1, None)
    await caller.answered(say("x"), agent="gone")
    # To another organisation none of them exists.
    other = Caller.made(stack.admin_url, stack.state().urls["api"])
    for path in ("/v1/agents/here", "/v1/agents/here/versions"):
        with pytest.raises(Refused) as refused:
            await other.request("GET", path)
        assert (refused.value.status, refused.value.problem["known"]) == (404, [])
    await other.http.aclose()


@pytest.mark.parametrize(
    ("spec", "status", "pointer"),
    [
        ({"name": "no/slash"}, 422, "/name"),
        ({"name": "x", "colour": "red"}, 422, "/colour"),
        ({"name": "x", "output_schema": {"type": 1}}, 422, "/output_schema"),
        ({"name": "x", "sampling": {"max_tokens": 1, "min_tokens": 2}}, 422, "/sampling"),
        ({"name": "x", "model": "gpt-9"}, 404, None),
        ({"name": "x", "route": "nowhere"}, 404, None),
        ({"name": "x", "collections": ["nowhere"]}, 404, None),
    ],
)
async def test_an_agent_that_no_task_could_be_is_refused(
    caller: Caller, spec: dict[str, Any], status: int, pointer: str | None
) -> None:
    with pytest.raises(Refused) as refused:
        await caller.request("POST", "/v1/agents", json=spec)
    assert refused.value.status == status
    if pointer:
        assert refused.value.problem["errors"][0]["pointer"] == pointer
    assert (await caller.request("GET", "/v1/agents")).json()["agents"] == []


async def test_a_request_that_contradicts_its_agent_is_told_so(caller: Caller) -> None:
    await _apply(caller, name="long", sampling={"min_tokens": 50, "max_tokens": 60})
    with pytest.raises(Refused) as refused:
        await caller.submit("x", agent="long", sampling={"max_tokens": 10})
    assert refused.value.status == 422
    assert "long@1" in refused.value.problem["errors"][0]["detail"]


def test_the_example_is_applied_shown_and_used_on_the_command_line(
    stack: RunningStack, tmp_path: Path
) -> None:
    applied = stack.json("agent", "apply", str(EXAMPLE))
    assert (applied["name"], applied["created"]) == ("research", True)
    assert "says this already" in stack.overline("agent", "apply", str(EXAMPLE)).stdout
    listed = stack.overline("agent", "list", check=True).stdout
    assert "research@1" in listed
    # What it shows can be applied, and says the same.
    shown = tmp_path / "shown.yaml"
    shown.write_text(stack.overline("agent", "show", "research", check=True).stdout)
    assert stack.json("agent", "apply", str(shown))["created"] is False
    task = stack.json(
        "submit", "--agent", "research", "What is 2+2?", "--max-tokens", "8", "--no-cache"
    )
    assert task["agent"] == "research@1"

    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: [")
    refused = stack.overline("agent", "apply", str(wrong))
    assert refused.returncode != 0
    assert "line 1" in refused.stderr
