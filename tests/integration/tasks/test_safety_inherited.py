"""What belongs to a task keeps to its policy: messages, turns, maps, sub-agents and forks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, ask, say, words
from tests.integration.tasks.histories import assert_replays
from tests.integration.tasks.policies import (
    PEOPLE,
    SetPolicy,
    address,
    decisions,
    left_in_clear,
)
from tests.integration.tasks.test_safety_judged import other_team
from tests.integration.tasks.test_sub_agents import agent

MODEL = "scripted"
BIRD = {"id": "bird", "kind": "deny_list", "words": ["Bluebird"], "action": "block"}
ASKED = {"id": "asked", "kind": "deny_list", "words": ["launch"], "action": "require_approval"}
INPUT = {"on": ["input"]}


async def turns(caller: Caller, session_id: str, count: int) -> list[dict[str, Any]]:
    """Wait until so many messages of a session have had their turn, and read them."""
    while True:
        answer = await caller.request("GET", f"/v1/sessions/{session_id}/messages")
        found: list[dict[str, Any]] = answer.json()["messages"]
        if len(found) == count and all(
            each["state"] in ("answered", "failed", "refused") for each in found
        ):
            return found
        await asyncio.sleep(0.05)


async def test_what_is_said_to_a_task_and_in_a_session_is_screened(
    caller: Caller, stack: RunningStack, books: Books, policy: SetPolicy
) -> None:
    await policy(PEOPLE, BIRD | INPUT, ASKED | INPUT)
    ada, bob = address(), address()
    task_id = await caller.submit(
        f"I am {ada}. " + say(words(60), pace_ms=8), model=MODEL, sampling={"max_tokens": 2000}
    )
    path = f"/v1/tasks/{task_id}/messages"
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 20)
        # A policy that changes meanwhile is not the task's.
        await policy(PEOPLE)
        for content, code in (("Bluebird?", "OVL-3008"), ("launch?", "OVL-3009")):
            with pytest.raises(Refused) as told:
                await caller.request("POST", path, json={"content": content})
            assert told.value.problem["code"] == code
        told_it = f"Now I am {bob}, not {ada}. " + say(f"Hello {bob}, not {ada}.", turn=2)
        await caller.request("POST", path, json={"content": told_it})
        await watcher.to_end()
    task = await caller.task(task_id)
    assert watcher.text(2) == task["answer"] == f"Hello {bob}, not {ada}."
    (message,) = (await caller.request("GET", path)).json()["messages"]
    assert message["content"] == told_it
    (row,) = books.rows("select answer from tasks where task_id = %s", task_id)
    assert row["answer"] == "Hello <EMAIL_ADDRESS_2>, not <EMAIL_ADDRESS_1>."

    # A session: what its turns took out is one map, so that a later turn may name it.
    await policy(PEOPLE, BIRD | INPUT)
    asked_with = {"model": MODEL, "cache": "off", "system": f"You serve {bob}."}
    session = (await caller.request("POST", "/v1/sessions", json=asked_with)).json()["id"]
    path = f"/v1/sessions/{session}/messages"
    first = f"I am {ada}. " + say("Noted.")
    second = "Who am I, and whom do you serve? " + say(f"{ada}; {bob}.", turn=2)
    for content in (first, second):
        await caller.request("POST", path, json={"content": content})
    with pytest.raises(Refused) as told:
        await caller.request("POST", path, json={"content": "Bluebird?"})
    assert told.value.problem["rule"] == "bird"
    one, two = await turns(caller, session, 2)
    assert (one["content"], two["answer"]) == (first, f"{ada}; {bob}.")
    (kept,) = books.rows(
        "select content from session_messages where session_id = %s and number = 1", session
    )
    assert kept["content"].startswith("I am <EMAIL_ADDRESS_")
    own = await caller.task(two["task_id"])
    assert own["answer"] == f"{ada}; {bob}."
    # What was taken out of it is its team's: whoever of another team speaks in it reads tokens.
    other, carl = other_team(caller, stack), address()
    content = f"I am {carl}. " + say(f"Hello {carl}.", turn=3)
    await other.request("POST", path, json={"content": content})
    three = (await turns(caller, session, 3))[2]
    assert (three["content"], three["answer"]) == (content, f"Hello {carl}.")
    assert (await caller.task(three["task_id"]))["answer"] == f"Hello {carl}."
    theirs = await other.task(three["task_id"])
    assert theirs["answer"].startswith("Hello <EMAIL_ADDRESS_")
    await other.http.aclose()
    # The session's own system prompt is its owner's setting: kept as it was written.
    assert set(left_in_clear(books, bob)) <= {"sessions"}
    assert left_in_clear(books, ada) == []
    await assert_replays(stack, [f"task-{task_id}", f"task-{two['task_id']}"])


async def test_maps_sub_agents_and_forks_keep_what_was_taken_out(
    caller: Caller, stack: RunningStack, books: Books, policy: SetPolicy
) -> None:
    await policy(PEOPLE, BIRD | INPUT)
    ada, bob = address(), address()
    body = {
        "model": MODEL,
        "inputs": [f"I am {ada}. {say(f'Hello {ada}.')}", f"{ada}, {bob}. {say(f'Bye {bob}.')}"],
    }
    with pytest.raises(Refused) as told:
        await caller.request("POST", "/v1/maps", json=body | {"inputs": ["fine", "Bluebird"]})
    assert told.value.problem["rule"] == "bird"
    map_id = (await caller.request("POST", "/v1/maps", json=body)).json()["id"]
    await caller.ended(map_id)
    results = (await caller.request("GET", f"/v1/maps/{map_id}/results")).json()["results"]
    assert [each["answer"] for each in results] == [f"Hello {ada}.", f"Bye {bob}."]
    assert (await caller.task(results[1]["task_id"]))["answer"] == f"Bye {bob}."

    # A sub-agent reads its parent's tokens, and its parent reads the sub-agent's.
    await agent(caller, "clerk", system="You write letters.")
    letter = say(f"Dear {ada}, see {bob}.")
    tools = [{"name": "agent.clerk", "must_call": True}]
    question = f"I am {ada}, he is {bob}. " + ask("clerk", f"Write to {ada}.") + letter
    # What the clerk says stands in what it is asked: a directive within a directive.
    task = await caller.answered(question, model=MODEL, tools=tools, cache="off")
    assert task["answer"] == f"Dear {ada}, see {bob}."
    (child,) = task["children"]
    asked = await caller.task(child["id"])
    assert asked["preview"] == f"Write to {ada}."
    (row,) = books.rows("select input from tasks where task_id = %s", child["id"])
    assert row["input"]["input"] == "Write to <EMAIL_ADDRESS_1>."
    assert row["input"]["safety"]["scope"] == task["id"]

    # A schedule's task is screened when it is due, and what it may not ask is refused then.
    eve = address()
    for number, (content, answer) in enumerate(((eve, f"Hi {eve}."), ("Bluebird", None))):
        scheduled = {"input": f"For {content}: " + say(f"Hi {content}."), "model": MODEL}
        made = {"name": f"s{number}", "interval_seconds": 300 * 86_400, "task": scheduled}
        schedule = (await caller.request("POST", "/v1/schedules", json=made)).json()["id"]
        path = f"/v1/schedules/{schedule}"
        await caller.request("POST", f"{path}/run")
        while not (runs := (await caller.request("GET", path)).json()["runs"]):
            await asyncio.sleep(0.05)
        if answer is None:
            assert runs[0]["code"] == "OVL-3008"
        else:
            assert (await caller.ended(runs[0]["task_id"]))["answer"] == answer
    assert left_in_clear(books, eve) == ["schedules"]

    # A fork is screened by the policy of today, and knows what was taken out before.
    fork_body = {"from_step": 2, "sampling": {"max_tokens": 100}}
    fork = (await caller.request("POST", f"/v1/tasks/{task['id']}/fork", json=fork_body)).json()[
        "id"
    ]
    forked = await caller.ended(fork)
    assert forked["answer"] == task["answer"]
    assert [each[2] for each in decisions(books, fork)] == []
    assert left_in_clear(books, ada) == left_in_clear(books, bob) == []
    ids = [f"task-{each}" for each in (map_id, task["id"], child["id"], fork)]
    await assert_replays(stack, ids)
