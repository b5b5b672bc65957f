"""Safety policies in agents' tasks, on the real stack: what nobody may see, nobody sees."""

from __future__ import annotations

from typing import Any

import pytest

from store.provision import create_key, create_team
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, say
from tests.integration.tasks.histories import assert_replays
from tests.integration.tasks.policies import PEOPLE, SetPolicy, address, decisions, left_in_clear
from tests.integration.tasks.test_approvals import decide, waiting

MODEL = "scripted"
SECRET = {"id": "codename", "kind": "deny_list", "words": ["Bluebird"], "action": "block"}
ASKED = {"id": "asked", "kind": "deny_list", "words": ["launch"], "action": "require_approval"}
TOLD = {"id": "told", "kind": "deny_list", "words": ["pricing"], "action": "flag"}


async def refused(caller: Caller, question: str, **fields: Any) -> dict[str, Any]:
    with pytest.raises(Refused) as told:
        await caller.submit(question, model=MODEL, **fields)
    return {"status": told.value.status, **told.value.problem}


async def test_a_submission_is_blocked_redacted_flagged_or_asks_a_person(
    caller: Caller, stack: RunningStack, books: Books, policy: SetPolicy
) -> None:
    version = await policy(
        PEOPLE, SECRET | {"on": ["input"]}, ASKED | {"on": ["input"]}, TOLD | {"on": ["input"]}
    )
    ada, bob = address(), address()

    # Blocked: before anything is filed, and the audit log says by which rule.
    problem = await refused(caller, f"Tell {ada} of Bluebird.")
    assert (problem["status"], problem["code"], problem["rule"]) == (400, "OVL-3008", "codename")
    assert (await caller.request("GET", "/v1/tasks")).json()["tasks"] == []
    (entry,) = books.rows(
        "select detail from audit_log where organisation_id = %s and action = 'safety.block'",
        caller.organisation_id,
    )
    assert {each["rule"] for each in entry["detail"]["findings"]} == {"people", "codename"}
    assert left_in_clear(books, ada) == []

    # Redacted: the model, the store and the histories have tokens; its caller has the words.
    said = f"Dear {ada}, your pricing: ask {bob}. Yours, {ada}"
    question = f"I am {ada}, friend of {bob}. " + say(said)
    task_id = await caller.submit(question, model=MODEL)
    async with caller.watch(task_id) as watcher:
        last = await watcher.to_end()
    assert last.type == "task.succeeded"
    task = await caller.task(task_id)
    assert watcher.text() == task["answer"] == said
    assert task["preview"].startswith(f"I am {ada}")
    (step,) = await caller.steps(task_id)
    assert step["text"] == said
    (row,) = books.rows("select input, answer from tasks where task_id = %s", task_id)
    assert row["answer"] == (
        "Dear <EMAIL_ADDRESS_1>, your pricing: ask <EMAIL_ADDRESS_2>. Yours, <EMAIL_ADDRESS_1>"
    )
    assert row["input"]["safety"]["version"] == version
    assert left_in_clear(books, ada) == left_in_clear(books, bob) == []
    found = ["people", "people", "people", "told", "people", "people"]
    assert decisions(books, task_id) == [(0, "input", "redact", found)]

    # A key of another team reads the task as it is kept.
    team = create_team(stack.admin_url, caller.organisation_id, "others")
    key = create_key(stack.admin_url, caller.organisation_id, team, "other")
    other = Caller(caller.base_url, key.token, caller.organisation_id, key.key_id)
    assert (await other.task(task_id))["answer"] == row["answer"]
    async with other.watch(task_id) as elsewhere:
        await elsewhere.to_end()
    assert elsewhere.text() == row["answer"]
    await other.http.aclose()

    # Another caller's question with other words has the same tokens: the cache answers it, and
    # each gets its own words back.
    carl, dora = address(), address()
    again = await caller.answered(question.replace(ada, carl).replace(bob, dora), model=MODEL)
    assert again["answer"] == said.replace(ada, carl).replace(bob, dora)
    assert [each["cached"] for each in await caller.steps(again["id"])] == [True]

    # A person is asked, in the way they are asked about tools.
    held_id = await caller.submit("Is it time to launch? " + say("It is."), model=MODEL)
    question_of_it = await waiting(caller, held_id)
    assert (question_of_it["tool"], question_of_it["arguments"]) == ("request", {"rule": "asked"})
    assert (await caller.task(held_id))["waiting_for"] == "approval"
    await decide(caller, held_id, question_of_it["call_id"], decision="approve")
    held = await caller.ended(held_id)
    assert (held["status"], held["answer"]) == ("succeeded", "It is.")
    gone_id = await caller.submit("May we launch? " + say("Never said."), model=MODEL)
    call_id = (await waiting(caller, gone_id))["call_id"]
    await decide(caller, gone_id, call_id, decision="refuse", reason="not today")
    gone = await caller.ended(gone_id)
    assert (gone["status"], gone["error"]["code"]) == ("failed", "OVL-3008")
    assert "not today" in gone["error"]["message"]
    assert gone["steps"] == 0

    # Dry run: all of it is told of, and nothing is done.
    await policy(PEOPLE, SECRET, mode="dry_run")
    dry = await caller.answered(f"{ada} asks of Bluebird. " + say("Aha."), model=MODEL)
    assert decisions(books, dry["id"]) == [(0, "input", "allow", ["people", "codename"])]
    await assert_replays(stack, [f"task-{each}" for each in (task_id, held_id, gone_id)])
