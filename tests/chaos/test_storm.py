"""Many tasks, many kills, at moments that chance picks: admission and settlement included."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from tests.chaos.victims import kill, model_processes
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Watcher, choose, say, words
from tests.integration.tasks.histories import assert_replays

MODEL = "scripted"
SEED = 4711
TASKS = 10
CANCELLED = 4
TOOL_STEPS = 3
ANSWER = words(16)
# Workers and databases most often: they are what a call passes through.
TARGETS = ("worker-1", "worker-2", "worker-1", "worker-2", "postgres", "temporal", "model", "api")
STORM_S = 12.0
PAUSES_S = (0.2, 1.2)


def _question(number: int) -> str:
    """A task of its own: no cache can answer it, and its results tell its number."""
    sums = [{"tool": "calculator", "expression": f"{number}+{step}"} for step in range(TOOL_STEPS)]
    return f"Task {number}. " + "".join(map(choose, sums)) + say(ANSWER, pace_ms=8)


async def _storm(stack: RunningStack, chance: random.Random) -> list[str]:
    """Kill parts at random moments; returns which."""
    killed: list[str] = []
    until = time.monotonic() + STORM_S
    while time.monotonic() < until:
        await asyncio.sleep(chance.uniform(*PAUSES_S))
        target = chance.choice(TARGETS)
        parts = stack.state().parts
        part = parts["triton" if target == "model" else target]
        if part["pid"] is None:
            continue
        pids = model_processes(part["pid"]) if target == "model" else [part["pid"]]
        if pids:
            kill(pids)
            killed.append(target)
    return killed


async def test_no_moment_is_a_bad_one(caller: Caller, whole: RunningStack, books: Books) -> None:
    chance = random.Random(SEED)
    before, booked = await books.metered(MODEL), books.booked(MODEL)
    watchers: list[Watcher] = []

    async def one(number: int) -> dict[str, Any]:
        await asyncio.sleep(chance.uniform(0, STORM_S / 2))
        task_id = await caller.submit(
            _question(number),
            model=MODEL,
            tools=[{"name": "calculator", "must_call": False, "max_calls": TOOL_STEPS}],
            sampling={"max_tokens": 500},
        )
        async with caller.watch(task_id) as watcher:
            watchers.append(watcher)
            await watcher.to_end(limit_s=100)
        return await caller.task(task_id)

    async def changed_ones_mind(number: int) -> dict[str, Any]:
        await asyncio.sleep(chance.uniform(0, STORM_S / 2))
        question = f"Task {number}. " + say(words(80), pace_ms=10)
        task_id = await caller.submit(question, model=MODEL, sampling={"max_tokens": 500})
        await asyncio.sleep(chance.uniform(0, 4))
        await caller.cancel(task_id)
        return await caller.ended(task_id)

    storm = asyncio.create_task(_storm(whole, chance))
    done = await asyncio.gather(
        *(one(number) for number in range(TASKS)),
        *(changed_ones_mind(TASKS + number) for number in range(CANCELLED)),
    )
    tasks, cancelled = done[:TASKS], done[TASKS:]
    killed = await storm
    assert len(killed) >= 8
    assert len(set(killed)) >= 4

    assert [task["status"] for task in tasks] == ["succeeded"] * TASKS, tasks
    assert {task["answer"] for task in tasks} == {ANSWER}
    for watcher in watchers:
        watcher.assert_once_and_in_order()
        assert watcher.text(TOOL_STEPS + 1) == ANSWER

    rows = books.ledger(*(task["id"] for task in tasks))
    books.assert_no_call_ran_twice(rows)
    for number, task in enumerate(tasks):
        own = [row for row in rows if str(row["task_id"]) == task["id"]]
        good = [row["step"] for row in own if row["outcome"] == "succeeded"]
        assert good == list(range(1, TOOL_STEPS + 2)), own
        steps = await caller.steps(task["id"])
        results = [step["tool_result"] for step in steps[:TOOL_STEPS]]
        assert results == [f"{number}+{n} = {number + n}" for n in range(TOOL_STEPS)]
        assert task["completion_tokens"] == sum(
            row["output_tokens"] - row["wasted_output_tokens"] for row in own
        )
        last = [row for row in own if row["step"] == TOOL_STEPS + 1]
        said = sum(row["output_tokens"] - row["wasted_output_tokens"] for row in last)
        assert said == len(ANSWER) + 1
    ended = ("cancelled", "succeeded")
    odd = [task["error"] for task in cancelled if task["status"] not in ended]
    assert odd == []
    rows += books.ledger(*(task["id"] for task in cancelled))
    await books.assert_attempts_equal(rows)
    assert await books.metered(MODEL) - before == books.booked(MODEL) - booked
    books.assert_nothing_held(caller.organisation_id)
    # One that was cancelled before it was started has no history.
    await assert_replays(whole, [f"task-{task['id']}" for task in done if task["steps"]])
