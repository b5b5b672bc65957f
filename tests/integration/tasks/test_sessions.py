"""Conversations: every message has its turn, in order, once, and never two at once.

The Temporal of these tests suggests a new run after 150 events, which are some ten turns.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import pytest_asyncio
from temporalio.client import Client

from inference.client import TritonClient
from tests.chaos.victims import kill
from tests.integration.api.conftest import serving
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, say, words
from tests.integration.tasks.histories import assert_replays, runs_of
from tests.integration.tasks.test_worker_versions import builds_of, make_current, working
from workflows.client import connect_kwargs
from workflows.contracts import SessionInput, session_workflow_id

MODEL = "scripted"
MESSAGES = 30
EVENTS_OF_A_RUN = 150
ASKED = {"model": MODEL, "cache": "off", "sampling": {"max_tokens": 2000}}


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    """A stack whose Temporal suggests a new run early."""
    with tempfile.TemporaryDirectory(prefix="overline-") as folder:
        limit = f"limit.historyCount.suggestContinueAsNew={EVENTS_OF_A_RUN}"
        running = RunningStack(
            Path(folder) / "stack",
            {
                "OVERLINE_MODELS": MODEL,
                "OVERLINE_WORKERS": "2",
                "OVERLINE_TEMPORAL_DYNAMIC_CONFIG": limit,
            },
        )
        try:
            running.up()
            yield running
        finally:
            running.overline("down")


@pytest_asyncio.fixture
async def books(stack: RunningStack) -> AsyncIterator[Books]:
    """Ledger and meter of that stack."""
    async with TritonClient(stack.settings.triton_urls[0]) as engine:
        yield Books(stack.admin_url, engine)


async def _begin(caller: Caller, **fields: Any) -> str:
    headers = {"Idempotency-Key": str(uuid4())}
    begun = await caller.request("POST", "/v1/sessions", json=ASKED | fields, headers=headers)
    assert begun.status_code == 201
    return str(begun.json()["id"])


async def _say(
    caller: Caller, session_id: str, content: str, *, key: str | None = None
) -> dict[str, Any]:
    said: dict[str, Any] = (
        await caller.request(
            "POST",
            f"/v1/sessions/{session_id}/messages",
            json={"content": content},
            headers={"Idempotency-Key": key or str(uuid4())},
        )
    ).json()
    return said


async def _messages(caller: Caller, session_id: str) -> list[dict[str, Any]]:
    path = f"/v1/sessions/{session_id}/messages"
    found: list[dict[str, Any]] = []
    cursor: int | None = 0
    while cursor is not None:
        page = (await caller.request("GET", f"{path}?limit=7&cursor={cursor}")).json()
        found += page["messages"]
        cursor = page["next_cursor"]
    return found


async def _until(
    caller: Caller,
    session_id: str,
    holds: Callable[[list[dict[str, Any]]], bool],
    limit_s: float = 120,
) -> list[dict[str, Any]]:
    deadline = time.monotonic() + limit_s
    while not holds(read := await _messages(caller, session_id)):
        states = [each["state"] for each in read]
        assert time.monotonic() < deadline, states
        await asyncio.sleep(0.1)
    return read


def _over(read: list[dict[str, Any]]) -> bool:
    return bool(read) and read[-1]["state"] not in ("queued", "running")


async def _temporal(stack: RunningStack) -> Client:
    return await Client.connect(stack.settings.temporal_address, **connect_kwargs(stack.settings))


def _assert_one_after_the_other(books: Books, session_id: str, count: int) -> None:
    turns = books.rows(
        "select m.number, t.started_at, t.finished_at, t.status, t.created_at"
        " from session_messages m join tasks t using (organisation_id, task_id)"
        " where m.session_id = %s order by m.number",
        session_id,
    )
    assert [turn["number"] for turn in turns] == list(range(1, count + 1))
    for before, after in itertools.pairwise(turns):
        assert before["finished_at"] <= after["created_at"] <= after["started_at"]


async def test_a_conversation_is_seen_by_every_turn(
    caller: Caller, books: Books, stack: RunningStack
) -> None:
    session_id = await _begin(caller, system="Be brief.", user="ada", tags={"project": "chat"})
    first = await _say(caller, session_id, "My name is Ada. " + say("Hello, Ada."))
    assert (first["number"], first["replayed"]) == (1, False)
    await _say(caller, session_id, "What is my name? " + say("Ada."))
    read = await _until(caller, session_id, lambda seen: len(seen) == 2 and _over(seen))
    assert [each["answer"] for each in read] == ["Hello, Ada.", "Ada."]
    assert [each["state"] for each in read] == ["answered"] * 2
    _assert_one_after_the_other(books, session_id, 2)
    task = await caller.task(read[1]["task_id"])
    assert (task["user"], task["tags"]) == ("ada", {"project": "chat"})
    (step,) = await caller.steps(read[1]["task_id"])
    assert [part["source"] for part in step["provenance"]] == [
        "request",
        "session message 1",
        "session message 1",
        "message 1",
    ]
    # A turn is a task like any other: it can be forked, and the fork knows what was said before.
    changed = {"from_step": 1, "prompt": "And who am I? " + say("Still Ada.")}
    path = f"/v1/tasks/{read[1]['task_id']}/fork"
    fork = (await caller.request("POST", path, json=changed)).json()["id"]
    assert (await caller.ended(fork))["answer"] == "Still Ada."
    (step,) = await caller.steps(fork)
    assert len(step["provenance"]) == 4
    assert len(await _messages(caller, session_id)) == 2
    books.assert_nothing_held(caller.organisation_id)
    client = await _temporal(stack)
    await client.get_workflow_handle(session_workflow_id(UUID(session_id))).describe()
    await assert_replays(stack, [session_workflow_id(UUID(session_id))])


# Workers are killed and waited for.
@pytest.mark.timeout(400)
async def test_many_at_once_are_answered_in_order_whatever_is_killed(
    caller: Caller, books: Books, stack: RunningStack
) -> None:
    """Said through two API processes; a worker is killed on the way, and runs end."""
    session_id = await _begin(caller)
    async with serving(stack.settings) as other:
        second = Caller(str(other.base_url), caller.token, caller.organisation_id, caller.key_id)
        keys = [str(uuid4()) for _ in range(MESSAGES)]
        said = await asyncio.gather(
            *(
                _say(
                    (caller, second)[n % 2],
                    session_id,
                    f"message {n} " + say(f"answer {n}", turn=1, pace_ms=2),
                    key=keys[n],
                )
                for n in range(MESSAGES)
            )
        )
        numbers = {n: each["number"] for n, each in enumerate(said)}
        assert sorted(numbers.values()) == list(range(1, MESSAGES + 1))
        for part, done in (("worker-1", 4), ("worker-2", 12)):
            await _until(
                caller,
                session_id,
                lambda seen, done=done: sum(each["state"] == "answered" for each in seen) >= done,
            )
            kill([stack.pid(part)])
        # Repeated meanwhile: still one message each.
        again = await asyncio.gather(
            *(
                _say(
                    second,
                    session_id,
                    f"message {n} " + say(f"answer {n}", turn=1, pace_ms=2),
                    key=keys[n],
                )
                for n in range(0, MESSAGES, 5)
            )
        )
        assert [each["number"] for each in again] == [numbers[n] for n in range(0, MESSAGES, 5)]
        assert all(each["replayed"] for each in again)
        read = await _until(
            caller, session_id, lambda seen: len(seen) == MESSAGES and _over(seen), limit_s=240
        )
        await second.http.aclose()
    stack.wait_for(lambda state: state.all_ready)
    assert [each["number"] for each in read] == list(range(1, MESSAGES + 1))
    assert [each["state"] for each in read] == ["answered"] * MESSAGES
    assert len({each["task_id"] for each in read}) == MESSAGES
    _assert_one_after_the_other(books, session_id, MESSAGES)
    tasks = books.rows("select task_id from tasks where session_id = %s", session_id)
    assert len(tasks) == MESSAGES
    books.assert_no_call_ran_twice(books.ledger(*[each["task_id"] for each in read]))
    books.assert_nothing_held(caller.organisation_id)
    workflow_id = session_workflow_id(UUID(session_id))
    assert len(await runs_of(await _temporal(stack), workflow_id)) >= 2
    await assert_replays(stack, [workflow_id])


async def test_it_ends_when_nothing_is_said_and_begins_again(
    caller: Caller, books: Books, stack: RunningStack
) -> None:
    session_id = await _begin(caller)
    client = await _temporal(stack)
    workflow_id = session_workflow_id(UUID(session_id))
    handle = await client.start_workflow(
        "Session",
        SessionInput(
            organisation_id=caller.organisation_id, session_id=UUID(session_id), idle_seconds=1
        ),
        id=workflow_id,
        task_queue=stack.settings.task_queue,
    )
    await _say(caller, session_id, say("One."))
    await handle.result()
    await _say(caller, session_id, say("Two."))
    read = await _until(caller, session_id, lambda seen: len(seen) == 2 and _over(seen))
    assert [each["answer"] for each in read] == ["One.", "Two."]
    _assert_one_after_the_other(books, session_id, 2)
    # Closed, it answers what was said, takes nothing more, and its workflow ends.
    await _say(caller, session_id, say("Three.", pace_ms=30))
    closed = (await caller.request("DELETE", f"/v1/sessions/{session_id}")).json()
    assert (closed["state"], closed["messages"]) == ("closed", 3)
    again = (await caller.request("DELETE", f"/v1/sessions/{session_id}")).json()
    assert again["closed_at"] == closed["closed_at"]
    with pytest.raises(Refused) as refused:
        await _say(caller, session_id, "Four.")
    assert (refused.value.status, refused.value.problem["code"]) == (409, "OVL-1005")
    read = await _until(caller, session_id, lambda seen: len(seen) == 3 and _over(seen))
    assert read[-1]["answer"] == "Three."
    await client.get_workflow_handle(workflow_id).result()
    await assert_replays(stack, [workflow_id])


async def test_what_nobody_told_the_workflow_of_is_answered(
    caller: Caller, books: Books, stack: RunningStack
) -> None:
    """As if the API had died between the row and the signal; and a workflow ended by hand."""
    session_id = await _begin(caller)
    team = books.rows("select team_id from sessions where session_id = %s", session_id)
    books.rows(
        "select f.* from (select set_config('overline.organisation_id', %s, true)) b (o)"
        " cross join lateral say_in_session(b.o::uuid, %s, %s, %s, %s, null) f",
        str(caller.organisation_id),
        team[0]["team_id"],
        caller.key_id,
        session_id,
        say(words(60), pace_ms=10),
    )
    await _until(caller, session_id, lambda seen: seen[0]["state"] == "running", limit_s=40)
    client = await _temporal(stack)
    await client.get_workflow_handle(session_workflow_id(UUID(session_id))).terminate()
    await _say(caller, session_id, say("", turn=1) + say("After it.", turn=2))
    read = await _until(caller, session_id, lambda seen: len(seen) == 2 and _over(seen))
    assert [each["answer"] for each in read] == [words(60), "After it."]
    _assert_one_after_the_other(books, session_id, 2)


async def test_a_turn_that_fails_or_is_refused_does_not_end_the_session(
    caller: Caller, stack: RunningStack
) -> None:
    session_id = await _begin(caller)
    await _say(caller, session_id, say("x", unheard_of=1))
    read = await _until(caller, session_id, _over)
    assert (read[0]["state"], read[0]["error"]["code"]) == ("failed", "OVL-1007")
    other = await _begin(caller)
    with psycopg.connect(stack.admin_url) as connection:
        connection.execute(
            "update budgets set cap_usd = 0.000000001 where scope = 'key' and scope_id = %s",
            (caller.key_id,),
        )
    await _say(caller, other, say("never"))
    read = await _until(caller, other, _over)
    assert (read[0]["state"], read[0]["error"]["code"]) == ("refused", "OVL-3001")
    assert read[0]["task_id"] is None
    with psycopg.connect(stack.admin_url) as connection:
        connection.execute(
            "update budgets set cap_usd = null where scope_id = %s", (caller.key_id,)
        )
    await _say(caller, other, say("Now."))
    read = await _until(caller, other, lambda seen: len(seen) == 2 and _over(seen))
    assert (read[1]["state"], read[1]["answer"]) == ("answered", "never")


async def test_one_stream_over_all_turns_goes_on_after_every_cut(
    caller: Caller, stack: RunningStack
) -> None:
    session_id = await _begin(caller)
    for number in range(3):
        await _say(caller, session_id, say(f"answer {number}", turn=number + 1, pace_ms=8))
    await caller.request("DELETE", f"/v1/sessions/{session_id}")
    whole = [event async for event in _stream(caller, session_id)]
    kinds = [(event["turn"], event["type"]) for event in whole]
    for turn in (1, 2, 3):
        own = [kind for at, kind in kinds if at == turn]
        assert own[0] == "message"
        assert own[-1] == "task.succeeded"
    assert kinds[-1] == (4, "session.closed")
    text = ["", "", ""]
    for event in whole:
        if event["type"] == "text":
            text[event["turn"] - 1] += event["payload"]["text"]
    assert text == ["answer 0", "answer 1", "answer 2"]
    places = [(event["turn"], event["seq"]) for event in whole]
    assert places == sorted(set(places))
    # From anywhere on, the rest and nothing else.
    for cut in range(0, len(whole) - 1, 4):
        last = f"{whole[cut]['turn']}:{whole[cut]['seq']}"
        rest = [event async for event in _stream(caller, session_id, last)]
        assert rest == whole[cut + 1 :]
    third = [event async for event in _stream(caller, session_id, first=3)]
    assert third == [event for event in whole if event["turn"] >= 3]


async def _stream(
    caller: Caller, session_id: str, after: str | None = None, *, first: int = 1
) -> AsyncIterator[dict[str, Any]]:
    headers = {"Last-Event-ID": after} if after else {}
    path = f"/v1/sessions/{session_id}/events?from_message={first}"
    async with caller.http.sse(path, headers=headers) as source:
        assert source.response.status_code == 200
        async for event in source:
            if event.data:
                yield json.loads(event.data)


async def test_it_goes_on_with_the_build_of_the_day(caller: Caller, stack: RunningStack) -> None:
    """Begun on one build, which is gone when the next message comes."""
    deployment = f"test-{uuid4().hex[:8]}"
    old = stack.settings.model_copy(
        update={
            "task_queue": f"versioned-{deployment}",
            "worker_deployment": deployment,
            "build_id": "one",
        }
    )
    client = await _temporal(stack)
    async with serving(old) as api:
        here = Caller(str(api.base_url), caller.token, caller.organisation_id, caller.key_id)
        async with working(old):
            await make_current(stack, deployment, "one")
            session_id = await _begin(here)
            await _say(here, session_id, say("One."))
            (first,) = await _until(here, session_id, _over)
            # Its row ends before its workflow, which is pinned.
            await client.get_workflow_handle(f"task-{first['task_id']}").result()
        async with working(old.model_copy(update={"build_id": "two"})):
            await make_current(stack, deployment, "two")
            await _say(here, session_id, say("Two."))
            read = await _until(here, session_id, lambda seen: len(seen) == 2 and _over(seen))
        await here.http.aclose()
    assert [each["answer"] for each in read] == ["One.", "Two."]
    workflow_id = session_workflow_id(UUID(session_id))
    runs = [workflow_id, *(f"task-{each['task_id']}" for each in read)]
    builds = [builds_of(await client.get_workflow_handle(each).fetch_history()) for each in runs]
    assert builds == [{"one", "two"}, {"one"}, {"two"}]
    await client.get_workflow_handle(workflow_id).terminate()


async def test_a_message_to_a_turn_is_part_of_the_conversation(caller: Caller) -> None:
    session_id = await _begin(caller)
    await _say(caller, session_id, say(words(40), pace_ms=10))
    read = await _until(caller, session_id, lambda seen: seen[0]["task_id"] is not None)
    task_id = read[0]["task_id"]
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 10)
        body = {"content": "One more thing. " + say("That, too.")}
        await caller.request("POST", f"/v1/tasks/{task_id}/messages", json=body)
        await watcher.to_end()
    await _say(caller, session_id, say("All of it."))
    read = await _until(caller, session_id, lambda seen: len(seen) == 2 and _over(seen))
    assert [each["answer"] for each in read] == ["That, too.", "All of it."]
    (step,) = await caller.steps(read[1]["task_id"])
    # Question, answer, what was said meanwhile, the answer to that, and the new question.
    assert len(step["provenance"]) == 5


async def test_the_same_key_begins_one_session_and_nobody_elses(
    caller: Caller, stack: RunningStack
) -> None:
    key = {"Idempotency-Key": str(uuid4())}
    first = await caller.request("POST", "/v1/sessions", json=ASKED, headers=key)
    again = await caller.request("POST", "/v1/sessions", json=ASKED, headers=key)
    assert first.json() == again.json()
    assert again.headers["Idempotent-Replayed"] == "true"
    other_request = ASKED | {"system": "other"}
    with pytest.raises(Refused) as refused:
        await caller.request("POST", "/v1/sessions", json=other_request, headers=key)
    assert (refused.value.status, refused.value.problem["code"]) == (409, "OVL-1005")
    session_id = first.json()["id"]
    listed = (await caller.request("GET", "/v1/sessions")).json()["sessions"]
    assert [each["id"] for each in listed] == [session_id]
    other = Caller.made(stack.admin_url, stack.state().urls["api"])
    assert (await other.request("GET", "/v1/sessions")).json()["sessions"] == []
    path = f"/v1/sessions/{session_id}"
    for method, where, options in (
        ("GET", path, {}),
        ("DELETE", path, {}),
        ("GET", f"{path}/messages", {}),
        ("GET", f"{path}/events", {}),
        ("POST", f"{path}/messages", {"json": {"content": "hello"}}),
    ):
        with pytest.raises(Refused) as unseen:
            await other.request(method, where, **options)
        assert unseen.value.status == 404
    await other.http.aclose()
    for bad in ({"input": "x"}, {"messages": []}, {"tools": [{"name": "no.such"}]}):
        with pytest.raises(Refused) as wrong:
            await caller.request("POST", "/v1/sessions", json=ASKED | bad)
        assert wrong.value.status == 422
    with pytest.raises(Refused) as blank:
        await _say(caller, session_id, "  ")
    assert blank.value.status == 422
