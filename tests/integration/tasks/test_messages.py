"""What is said to a running task: in order, each once, never lost between a message and the end."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.chaos.victims import kill, pids_of
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, choose, say, words
from tests.integration.tasks.histories import assert_replays

MODEL = "scripted"
CALCULATE = choose({"tool": "calculator", "expression": "6*7"})


async def _say(
    caller: Caller, task_id: str, content: str, *, key: str | None = None
) -> dict[str, Any]:
    headers = {"Idempotency-Key": key or str(uuid4())}
    path = f"/v1/tasks/{task_id}/messages"
    body = {"content": content}
    sent: dict[str, Any] = (await caller.request("POST", path, json=body, headers=headers)).json()
    return sent


async def _messages(caller: Caller, task_id: str) -> list[dict[str, Any]]:
    read = (await caller.request("GET", f"/v1/tasks/{task_id}/messages")).json()
    messages: list[dict[str, Any]] = read["messages"]
    return messages


async def _slow(caller: Caller, text: str = words(40), **fields: Any) -> str:
    return await caller.submit(
        f"{uuid4()} " + say(text, pace_ms=10),
        **({"model": MODEL, "cache": "off", "sampling": {"max_tokens": 2000}} | fields),
    )


async def test_a_message_that_comes_with_the_answer_is_answered_too(
    caller: Caller, books: Books, stack: RunningStack
) -> None:
    task_id = await _slow(caller)
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 20)
        sent = await _say(caller, task_id, "And now? " + say("Now this."))
        assert (sent["number"], sent["replayed"]) == (1, False)
        assert (await _messages(caller, task_id))[0]["state"] == "queued"
        last = await watcher.to_end()
    watcher.assert_once_and_in_order()
    assert last.type == "task.succeeded"
    assert (watcher.text(1), watcher.text(2)) == (words(40), "Now this.")
    task = await caller.task(task_id)
    assert (task["answer"], task["steps"]) == ("Now this.", 2)
    (message,) = await _messages(caller, task_id)
    assert (message["state"], message["at_step"]) == ("taken", 2)
    said = [(e.type, e.payload) for e in watcher.events if e.type.startswith("message.")]
    assert said == [("message.queued", {"number": 1}), ("message.taken", {"numbers": [1]})]
    # The model saw the first answer as one of the conversation, and the message as the question.
    (_, second) = await caller.steps(task_id)
    assert [part["source"] for part in second["provenance"]] == [
        "message 1",
        "step 1",
        "task message 1",
    ]
    books.assert_no_call_ran_twice(books.ledger(task_id))
    books.assert_nothing_held(caller.organisation_id)
    await assert_replays(stack, [f"task-{task_id}"])


async def test_messages_are_read_between_steps_and_in_order(caller: Caller) -> None:
    question = (
        f"{uuid4()} "
        + choose({"tool": "calculator", "expression": "1+1"}, pace_ms=15)
        + choose({"tool": "calculator", "expression": "2+2"}, pace_ms=15)
    )
    task_id = await caller.submit(
        question,
        model=MODEL,
        cache="off",
        tools=[{"name": "calculator", "max_calls": 2}],
        limits={"max_steps": 12},
    )
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: any(e.type == "step.started" for e in seen.events))
        for number in range(1, 4):
            text = f"number {number} " + (say("All heard.") if number == 3 else "")
            assert (await _say(caller, task_id, text))["number"] == number
        await watcher.to_end()
    watcher.assert_once_and_in_order()
    read = await _messages(caller, task_id)
    assert [each["number"] for each in read] == [1, 2, 3]
    steps = [each["at_step"] for each in read]
    assert steps == sorted(steps)
    assert (await caller.task(task_id))["answer"] == "All heard."
    # Whoever came together stands before the newest in the prompt.
    last = (await caller.steps(task_id))[-1]["provenance"]
    told = [part["source"] for part in last if part["source"].startswith("task message")]
    assert told == [f"task message {number}" for number in (1, 2, 3)]


async def test_the_same_key_is_the_same_message(caller: Caller) -> None:
    task_id = await _slow(caller)
    key = str(uuid4())
    first = await _say(caller, task_id, "Once. " + say("Heard once."), key=key)
    again = await _say(caller, task_id, "Once. " + say("Heard once."), key=key)
    assert (first["number"], again["number"], again["replayed"]) == (1, 1, True)
    with pytest.raises(Refused) as refused:
        await _say(caller, task_id, "Another.", key=key)
    assert (refused.value.status, refused.value.problem["code"]) == (409, "OVL-1005")
    assert (await caller.ended(task_id))["answer"] == "Heard once."
    assert len(await _messages(caller, task_id)) == 1
    # A repetition gets its answer even when the task has ended; a new message does not.
    ended = await _say(caller, task_id, "Once. " + say("Heard once."), key=key)
    assert (ended["number"], ended["replayed"]) == (1, True)
    with pytest.raises(Refused) as refused:
        await _say(caller, task_id, "Too late.")
    assert (refused.value.status, refused.value.problem["code"]) == (409, "OVL-1005")
    assert "ended" in refused.value.problem["detail"]


async def test_a_message_that_nobody_told_of_is_read_nevertheless(
    caller: Caller, books: Books
) -> None:
    """As if the API had died between the row and the signal."""
    for pace, ended_by in ((10, "settlement"), (0, "sweeper")):
        task_id = await _slow(caller, words(30)) if pace else await _paused(caller)
        books.rows(
            "select f.* from (select set_config('overline.organisation_id', %s, true)) b (o)"
            " cross join lateral send_message(b.o::uuid, %s, %s, %s, null) f",
            str(caller.organisation_id),
            caller.key_id,
            task_id,
            "Unheard of. " + say("Heard of."),
        )
        if ended_by == "sweeper":
            sent = "select sent from task_messages where task_id = %s"
            for _ in range(200):
                if books.rows(sent, task_id)[0]["sent"]:
                    break
                await asyncio.sleep(0.1)
            assert books.rows(sent, task_id) == [{"sent": True}]
            await caller.request("POST", f"/v1/tasks/{task_id}/resume")
        assert (await caller.ended(task_id))["answer"] == "Heard of.", ended_by


async def _paused(caller: Caller) -> str:
    """A task that waits before its second step."""
    task_id = await caller.submit(
        f"{uuid4()} " + choose({"tool": "calculator", "expression": "1+1"}, pace_ms=20),
        model=MODEL,
        cache="off",
        tools=[{"name": "calculator", "max_calls": 1}],
    )
    await caller.request("POST", f"/v1/tasks/{task_id}/pause")
    return task_id


async def test_killed_workers_and_api_lose_no_message(
    caller: Caller, stack: RunningStack, books: Books
) -> None:
    task_id = await _slow(caller, words(60))
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 40)
        await _say(caller, task_id, "One. " + say(words(160), pace_ms=12))
        kill(await pids_of("worker", stack, task_id))
        stack.kill("api")
        await watcher.until(lambda seen: len(seen.text(2)) > 20)
        await _say(caller, task_id, "Two. " + say("Both."))
        kill(await pids_of("worker", stack, task_id))
        await watcher.to_end()
    stack.wait_for(lambda state: state.all_ready)
    watcher.assert_once_and_in_order()
    assert watcher.text(1) == words(60)
    assert watcher.text(2) == words(160)
    assert watcher.text(3) == (await caller.task(task_id))["answer"] == "Both."
    assert [each["at_step"] for each in await _messages(caller, task_id)] == [2, 3]
    books.assert_no_call_ran_twice(books.ledger(task_id))
    books.assert_nothing_held(caller.organisation_id)
    await assert_replays(stack, [f"task-{task_id}"])


async def test_where_no_step_may_follow_an_answer_ends_the_task(caller: Caller) -> None:
    task_id = await _slow(caller, words(30), limits={"max_steps": 1})
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 10)
        await _say(caller, task_id, "More, please.")
        await watcher.to_end()
    task = await caller.task(task_id)
    assert (task["status"], task["answer"]) == ("succeeded", words(30))
    assert (await _messages(caller, task_id))[0]["state"] == "unread"


async def test_a_fork_asks_what_its_parent_was_told(caller: Caller) -> None:
    task_id = await _slow(caller, words(30), cache="auto")
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 10)
        await _say(caller, task_id, "And? " + say("Told."))
        await watcher.to_end()
    path = f"/v1/tasks/{task_id}/fork"
    # Without a change it asks exactly what its parent asked next: the cache knows it.
    same = (await caller.request("POST", path, json={"from_step": 2})).json()["id"]
    assert (await caller.ended(same))["answer"] == "Told."
    (first, second) = await caller.steps(same)
    assert (first["inherited"], second["status"]) == (True, "cached")
    assert [each["at_step"] for each in await _messages(caller, same)] == [2]
    other = {"from_step": 2, "prompt": "And else? " + say("Told otherwise.")}
    changed = (await caller.request("POST", path, json=other)).json()["id"]
    assert (await caller.ended(changed))["answer"] == "Told otherwise."
    assert (await _messages(caller, changed))[0]["content"] == other["prompt"]
    # From its first step it is another conversation; what came later is not in it.
    anew = (await caller.request("POST", path, json={"from_step": 1})).json()["id"]
    assert (await caller.ended(anew))["answer"] == words(30)
    assert await _messages(caller, anew) == []


async def test_only_ones_own_tasks_and_only_words(caller: Caller, stack: RunningStack) -> None:
    task_id = await _slow(caller, words(20))
    other = Caller.made(stack.admin_url, stack.state().urls["api"])
    for act in (_say(other, task_id, "hello"), _messages(other, task_id)):
        with pytest.raises(Refused) as refused:
            await act
        assert refused.value.status == 404
    await other.http.aclose()
    for body in ({"content": " "}, {"content": ""}, {}, {"content": "x", "role": "system"}):
        with pytest.raises(Refused) as refused:
            await caller.request("POST", f"/v1/tasks/{task_id}/messages", json=body)
        assert refused.value.status == 422
    assert (await caller.ended(task_id))["answer"] == words(20)
    with psycopg.connect(stack.admin_url) as connection:
        found = connection.execute(
            "select count(*) from task_messages where task_id = %s", (task_id,)
        ).fetchone()
    assert found == (0,)
