"""What a model says, as a safety policy lets it pass: the same whatever dies, for every reader."""

from __future__ import annotations

import json

from tests.chaos.victims import kill, pids_of
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Event, say, words
from tests.integration.tasks.histories import assert_replays
from tests.integration.tasks.policies import PEOPLE, SetPolicy, address, decisions
from tests.upstream import Served

MODEL = "scripted"
BIRD = {"id": "bird", "kind": "deny_list", "words": ["Bluebird"], "on": ["output"]}
LONG = {"max_tokens": 4000}


async def test_an_answer_passes_as_its_policy_says_whatever_dies_and_is_billed_once(
    caller: Caller, stack: RunningStack, books: Books, policy: SetPolicy
) -> None:
    await policy(PEOPLE | {"on": ["input"]}, BIRD | {"action": "redact"}, hold_back=32)
    ada = address()
    said = f"{words(30)} Dear {ada}, Bluebird flies. {words(40)} Write {ada} of Bluebird."
    shown = said.replace("Bluebird", "[DENIED]")
    task_id = await caller.submit(say(said, pace_ms=8), model=MODEL, sampling=LONG, cache="off")
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 190)
        kill(await pids_of("worker", stack, task_id))
        last = await watcher.to_end()
    assert last.type == "task.succeeded", last
    watcher.assert_once_and_in_order()
    assert "reset" not in [event.type for event in watcher.events]
    task = await caller.task(task_id)
    assert watcher.text() == task["answer"] == shown
    assert decisions(books, task_id)[1:] == [(1, "output", "redact", ["bird", "bird"])]
    rows = books.ledger(task_id)
    assert len(rows) == 2
    useful = sum(row["output_tokens"] - row["wasted_output_tokens"] for row in rows)
    # The engine made what it was told to say, token for token: words stand for the address there.
    made = len(said.replace(ada, "<EMAIL_ADDRESS_1>")) + 1
    assert useful == made == task["completion_tokens"]
    await books.assert_attempts_equal(rows)
    books.assert_nothing_held(caller.organisation_id)

    # Wherever a reader comes in, it reads the rest: no token is ever cut in two.
    texts = [event for event in watcher.events if event.type == "text"]
    for place in range(0, len(texts), 7):
        rest = await _after(caller, task_id, texts[place])
        before = "".join(event.payload["text"] for event in texts[: place + 1])
        assert before + "".join(event.payload["text"] for event in rest) == shown
    await assert_replays(stack, [f"task-{task_id}"])


async def _after(caller: Caller, task_id: str, last: Event) -> list[Event]:
    return [event async for event in caller.stream(task_id, last.id) if event.type == "text"]


async def test_a_blocked_answer_stops_the_engine_and_its_task(
    caller: Caller, stack: RunningStack, books: Books, policy: SetPolicy
) -> None:
    await policy(BIRD | {"action": "block"}, hold_back=16)
    said = f"{words(10)} Bluebird {words(400)}"
    question = say(said, pace_ms=5)
    task_id = await caller.submit(question, model=MODEL, sampling=LONG)
    async with caller.watch(task_id) as watcher:
        last = await watcher.to_end()
    assert last.type == "task.failed"
    assert watcher.text() == f"{words(10)} "
    task = await caller.task(task_id)
    assert task["error"]["code"] == "OVL-3008"
    assert task["error"]["message"] == "rule 'bird' blocked the answer"
    assert task["answer"] is None
    (step,) = await caller.steps(task_id)
    assert (step["text"], step["finish_reason"]) == (f"{words(10)} ", "content_filter")
    (row,) = books.ledger(task_id)
    # What was made until then is billed, and it is a fraction of what would have been.
    assert row["outcome"] == "succeeded"
    assert len(words(10)) < row["output_tokens"] < len(said) // 3
    assert row["billed_usd"] > 0 == row["waste_usd"]
    await books.assert_attempts_equal([row])
    # Nothing of it is kept in the cache; with another policy the same question is another one.
    await policy()
    whole = await caller.answered(
        question.replace("pace_ms=5", "pace_ms=0"), model=MODEL, sampling=LONG
    )
    assert whole["answer"] == said
    books.assert_nothing_held(caller.organisation_id)
    await assert_replays(stack, [f"task-{task_id}"])


async def test_an_upstreams_answer_passes_in_the_same_way(
    caller: Caller, books: Books, upstream: Served, policy: SetPolicy
) -> None:
    await policy(PEOPLE | {"on": ["input"]}, BIRD | {"action": "block"}, hold_back=16)
    ada = address()
    said = say(f"To {ada}: four five six Bluebird seven ", tokens=4000, pace_ms=2)
    task_id = await caller.submit(f"I am {ada}. {said}", model="mock-plain", sampling=LONG)
    async with caller.watch(task_id) as watcher:
        assert (await watcher.to_end()).type == "task.failed"
    assert watcher.text() == f"To {ada}: four five six "
    assert (await caller.task(task_id))["error"]["code"] == "OVL-3008"
    told = json.dumps(upstream.stats.last_body)
    assert ada not in told
    assert "I am <EMAIL_ADDRESS_1>." in told
    (row,) = books.ledger(task_id)
    assert (row["outcome"], row["waste_usd"]) == ("succeeded", 0)
    assert 0 < row["output_tokens"] < 500
    books.assert_nothing_held(caller.organisation_id)
