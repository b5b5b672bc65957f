"""What a person or a model must allow first: an answer, a question, and what a task begins with."""

from __future__ import annotations

import json

import pytest

from store.provision import create_key, create_team
from tests.chaos.victims import kill, pids_of
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, say, words
from tests.integration.tasks.histories import assert_replays
from tests.integration.tasks.policies import PEOPLE, SetPolicy, address, decisions, left_in_clear
from tests.integration.tasks.test_approvals import decide, waiting

MODEL = "scripted"
BIRD = {"id": "bird", "kind": "deny_list", "words": ["Bluebird"], "on": ["output"]}


def other_team(caller: Caller, stack: RunningStack) -> Caller:
    """Return a caller of another team of the same organisation."""
    team = create_team(stack.admin_url, caller.organisation_id, "others")
    key = create_key(stack.admin_url, caller.organisation_id, team, "other")
    return Caller(caller.base_url, key.token, caller.organisation_id, key.key_id)


async def nothing_there(caller: Caller, path: str) -> None:
    """Require that there is nothing for a caller to read."""
    with pytest.raises(Refused) as told:
        await caller.request("GET", path)
    assert told.value.status == 404


def verdict(flagged: bool) -> str:
    """Return a directive that has the model that judges a text answer so."""
    return f"[[call text={json.dumps(json.dumps({'flagged': flagged}))}]]"


async def test_an_answer_waits_for_a_person_whatever_dies_meanwhile(
    caller: Caller, stack: RunningStack, books: Books, policy: SetPolicy
) -> None:
    await policy(PEOPLE, BIRD | {"action": "require_approval"})
    ada = address()
    said = f"{words(20)} Bluebird is of {ada}."
    question = f"I am {ada}. " + say(said, pace_ms=8)
    sampling = {"max_tokens": 2000}
    told_id = await caller.submit(question, model=MODEL, sampling=sampling)
    async with caller.watch(told_id) as watcher:
        await watcher.until(lambda seen: any(event.type == "text" for event in seen.events))
        kill(await pids_of("worker", stack, told_id))
        asked = await waiting(caller, told_id)
        assert (asked["tool"], asked["arguments"]["rule"]) == ("answer", "bird")
        assert watcher.text() == ""
        # It is paid for; nothing more is held while people take their time.
        books.assert_nothing_held(caller.organisation_id)
        assert len(books.ledger(told_id)) == 2
        # Who decides can read it; who reads the database finds it in the question only.
        path = f"/v1/tasks/{told_id}/blobs/{asked['arguments']['answer']}"
        assert (await caller.request("GET", path)).text == said
        assert left_in_clear(books, "Bluebird is of") == ["tasks"]
        await decide(caller, told_id, asked["call_id"], decision="approve")
        await watcher.to_end()
    told = await caller.task(told_id)
    assert watcher.text() == told["answer"] == said
    watcher.assert_once_and_in_order()
    # What a person allowed is no answer to the next one's question.
    refused_id = await caller.submit(question, model=MODEL, sampling=sampling)
    asked = await waiting(caller, refused_id)
    books.assert_nothing_held(caller.organisation_id)
    await decide(caller, refused_id, asked["call_id"], decision="refuse")
    refused = await caller.ended(refused_id)
    assert (refused["status"], refused["error"]["code"]) == ("failed", "OVL-3008")
    await nothing_there(caller, f"/v1/tasks/{refused_id}/blobs/{asked['arguments']['answer']}")
    assert (await caller.steps(refused_id))[0]["text"] == ""
    assert float(refused["cost_usd"]) > 0
    await books.assert_attempts_equal(books.ledger(told_id, refused_id))
    books.assert_nothing_held(caller.organisation_id)
    assert (await caller.request("GET", path)).text == said
    other = other_team(caller, stack)
    await nothing_there(other, path)
    await other.http.aclose()
    await assert_replays(stack, [f"task-{told_id}", f"task-{refused_id}"])


async def test_a_model_judges_what_is_asked_and_answered(
    caller: Caller, stack: RunningStack, books: Books, policy: SetPolicy
) -> None:
    judged = {"id": "judged", "kind": "moderation", "model": MODEL}
    await policy(judged | {"on": ["input"], "action": "block"})
    fine = await caller.answered(f"Fine. {verdict(False)}" + say("Yes."), model=MODEL, user="ada")
    assert fine["answer"] == "Yes."
    bad_id = await caller.submit(f"Bad. {verdict(True)}" + say("Never said."), model=MODEL)
    bad = await caller.ended(bad_id)
    assert (bad["status"], bad["steps"], bad["error"]["code"]) == ("failed", 0, "OVL-3008")
    assert bad["error"]["message"] == "rule 'judged' blocks what the task is asked"
    assert decisions(books, bad_id) == [(1, "input", "block", ["judged"])]
    # It is a call like any other: paid for by the same key, and told apart by its tag.
    calls = books.rows(
        "select user_id, tags, billed_usd from model_calls where organisation_id = %s"
        " and tags ->> 'purpose' = 'moderation'",
        caller.organisation_id,
    )
    assert len(calls) == 2
    assert {row["user_id"] for row in calls} == {"ada", None}
    assert all(row["billed_usd"] > 0 for row in calls)

    # An answer is judged as a whole, before anybody has a word of it.
    await policy(judged | {"on": ["output"], "action": "block"})
    for flagged in (False, True):
        said = f"An answer. {verdict(flagged)}"
        task_id = await caller.submit(say(said), model=MODEL, cache="off")
        async with caller.watch(task_id) as watcher:
            last = await watcher.to_end()
        assert last.type == ("task.failed" if flagged else "task.succeeded")
        assert watcher.text() == ("" if flagged else said)

    # Who cannot be asked has not judged: here the policy says to go on.
    await policy(judged | {"on": ["input"], "action": "block"}, on_failure="allow")
    assert (await caller.answered(say("On."), model=MODEL))["answer"] == "On."
    await assert_replays(stack, [f"task-{each}" for each in (fine["id"], bad_id)])
