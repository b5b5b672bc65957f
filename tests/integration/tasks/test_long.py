"""A task too long for one run of its workflow: nothing shows where one run ends.

The Temporal of these tests suggests a new run after 150 events, which are some five calls.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowHandle

from inference.client import TritonClient
from tests.chaos.victims import kill
from tests.integration.api.conftest import serving
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Event, Watcher, choose_all, say
from tests.integration.tasks.histories import assert_replays, runs_of, size_of
from tests.integration.tasks.long import MODEL, WINDOW_TOKENS, counted, counting
from tests.integration.tasks.test_worker_versions import builds_of, make_current, working
from workflows.client import SEARCH_STATUS, connect_kwargs

STEPS = 30
WAIT_S = 120
ANSWER = "That was a long way."
EVENTS_OF_A_RUN = 150
MOST_BYTES = 2_000_000
# Of the scripted engine a token is a byte.
CONVERSATION_TOKENS = 200_000
MESSAGES = 400


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


async def _temporal(stack: RunningStack) -> Client:
    return await Client.connect(stack.settings.temporal_address, **connect_kwargs(stack.settings))


def _completed(seen: Watcher) -> int:
    return sum(event.type == "step.completed" for event in seen.events)


async def _in_another_run(client: Client, task_id: str) -> None:
    """Wait until the task goes on in a run that is not its first."""
    handle = client.get_workflow_handle(f"task-{task_id}")
    deadline = time.monotonic() + 60
    while True:
        description = await handle.describe()
        info = description.raw_description.workflow_execution_info
        if info.first_run_id != description.run_id:
            return
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


# A killed worker is waited for, twice, and each run is replayed.
@pytest.mark.timeout(300)
async def test_nothing_is_lost_or_done_twice_where_a_run_ends(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    before, booked = await books.metered(MODEL), books.booked(MODEL)
    task_id = await caller.submit(**counting(STEPS, ANSWER))
    async with caller.watch(task_id) as watcher:
        for number, cut in enumerate((8, 20)):
            await watcher.until(lambda seen, cut=cut: _completed(seen) >= cut, limit_s=WAIT_S)
            part = f"worker-{number % 2 + 1}"
            kill([stack.pid(part)])
        last = await watcher.to_end(limit_s=WAIT_S)
    assert last.type == "task.succeeded", last
    watcher.assert_once_and_in_order()
    assert "reset" not in [event.type for event in watcher.events]
    assert watcher.text(STEPS + 1) == ANSWER

    # Every call and every tool once; the task's row knows them all.
    rows = books.ledger(task_id)
    books.assert_no_call_ran_twice(rows)
    good = [row["step"] for row in rows if row["outcome"] == "succeeded"]
    assert good == list(range(1, STEPS + 2))
    steps = await caller.steps(task_id)
    assert [step["tool_result"] for step in steps[:STEPS]] == [
        counted(step) for step in range(1, STEPS + 1)
    ]
    task = await caller.task(task_id)
    assert task["answer"] == ANSWER
    assert task["completion_tokens"] == sum(
        row["output_tokens"] - row["wasted_output_tokens"] for row in rows
    )
    await books.assert_attempts_equal(rows)
    assert await books.metered(MODEL) - before == books.booked(MODEL) - booked
    books.assert_nothing_held(caller.organisation_id)

    # What is read and sent for a call does not grow with its task.
    sizes: list[dict[str, Any]] = books.rows(
        "select jsonb_array_length(s.provenance) as parts,"
        " octet_length(g.prompt_ids) / 4 as tokens from steps s"
        " join generations g using (organisation_id, task_id, step)"
        " where s.task_id = %s order by s.step",
        task_id,
    )
    assert max(row["tokens"] for row in sizes) <= WINDOW_TOKENS
    assert max(row["parts"] for row in sizes) <= WINDOW_TOKENS // 8 + 2
    kept = {part["source"] for part in steps[STEPS - 1]["provenance"] if part["kept"]}
    assert f"step {STEPS - 1}" in kept
    assert "step 1" not in kept

    # It went through several runs, each small, and each replays.
    runs = await runs_of(await _temporal(stack), f"task-{task_id}")
    assert len(runs) >= STEPS * 30 // EVENTS_OF_A_RUN // 2
    assert max(size_of(run) for run in runs) < MOST_BYTES
    await assert_replays(stack, [f"task-{task_id}"])


# Its prompts are read and counted a hundred times.
@pytest.mark.timeout(300)
async def test_a_hundred_tool_calls_on_a_conversation_of_200_000_tokens_leave_small_histories(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    """Reported of others: the whole conversation sent again with each call ended runs at 50 MB."""
    request = counting(100, ANSWER)
    line = "x" * (CONVERSATION_TOKENS // MESSAGES)
    question = {"role": "user", "content": request.pop("input")}
    request["messages"] = [
        *({"role": ("user", "assistant")[n % 2], "content": line} for n in range(MESSAGES)),
        question,
    ]
    # As much of it as can be read a hundred times within the time of a test.
    request["limits"]["max_prompt_tokens"] = 16_000
    task = await caller.ended(await caller.submit(**request), limit_s=240)
    assert (task["status"], task["answer"], task["steps"]) == ("succeeded", ANSWER, 101), task
    runs = await runs_of(await _temporal(stack), f"task-{task['id']}")
    assert len(runs) > 10
    assert sum(size_of(run) for run in runs) < MOST_BYTES
    (prompts,) = books.rows(
        "select min(octet_length(prompt_ids) / 4) as least from generations where task_id = %s",
        task["id"],
    )
    assert prompts["least"] > 15_000
    books.assert_nothing_held(caller.organisation_id)


async def test_a_stream_cut_twenty_times_goes_on_where_it_was_in_whichever_run(
    caller: Caller, stack: RunningStack
) -> None:
    """Once before any event came, and across the ends of runs: ids go on, none is lost."""
    chance = random.Random(EVENTS_OF_A_RUN)
    task_id = await caller.submit(**counting(20, ANSWER, pace_ms=1))
    seen: list[Event] = []
    cuts = 0
    while not seen or seen[-1].type != "task.succeeded":
        stream = caller.stream(task_id, seen[-1].id if seen else None)
        left = chance.randint(1, 9) if cuts else 0
        while left:
            try:
                seen.append(await anext(stream))
            except StopAsyncIteration:
                break
            left -= 1
        await stream.aclose()  # type: ignore[attr-defined]
        cuts += 1
    assert cuts > 20
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert "gap" not in {event.type for event in seen}
    assert len(await runs_of(await _temporal(stack), f"task-{task_id}")) > 2


async def _status(handle: WorkflowHandle[Any, Any]) -> str | None:
    return (await handle.describe()).typed_search_attributes.get(SEARCH_STATUS)


async def _steer(caller: Caller, task_id: str, verb: str) -> None:
    await caller.request("POST", f"/v1/tasks/{task_id}/{verb}")


async def test_a_pause_outlives_the_end_of_its_run_and_shows_in_temporals_lists(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    """Who pauses and resumes for ever makes a long run, too: it ends while the task is paused."""
    client = await _temporal(stack)
    task_id = await caller.submit(**counting(12, ANSWER, pace_ms=1))
    handle = client.get_workflow_handle(f"task-{task_id}")
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: _completed(seen) >= 1)
        await _steer(caller, task_id, "pause")
        deadline = time.monotonic() + 60
        while await _status(handle) != "paused":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        done, first = (await caller.task(task_id))["steps"], (await handle.describe()).run_id
        # Wishes that change nothing, until the run they are told to is long.
        number = 1_000
        while (await handle.describe()).run_id == first:
            await handle.signal("pause", number)
            number += 1
            assert time.monotonic() < deadline
        for part in ("worker-1", "worker-2"):
            kill([stack.pid(part)])
        stack.wait_for(lambda state: state.all_ready)
        await handle.signal("pause", number)
        task = await caller.task(task_id)
        assert (task["status"], task["steps"]) == ("paused", done)
        assert await _status(handle) == "paused"
        # As the API's own numbers would: newer than all of those.
        await handle.signal("resume", number + 1)
        await _steer(caller, task_id, "resume")
        last = await watcher.to_end(limit_s=WAIT_S)
    assert last.type == "task.succeeded"
    watcher.assert_once_and_in_order()
    # The task's row ends with its last call, its workflow a moment later.
    await handle.result()
    assert await _status(handle) == "succeeded"
    books.assert_no_call_ran_twice(books.ledger(task_id))
    await assert_replays(stack, [f"task-{task_id}"])


@pytest.mark.timeout(240)
async def test_a_pinned_task_moves_to_the_new_build_where_its_run_ends(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    deployment = f"test-{uuid4().hex[:8]}"
    old = stack.settings.model_copy(
        update={
            "task_queue": f"versioned-{deployment}",
            "worker_deployment": deployment,
            "build_id": "one",
        }
    )
    client = await _temporal(stack)
    async with serving(old) as api, working(old):
        here = Caller(str(api.base_url), caller.token, caller.organisation_id, caller.key_id)
        await make_current(stack, deployment, "one")
        task_id = await here.submit(**counting(30, ANSWER, pace_ms=2))
        async with here.watch(task_id) as watcher:
            await watcher.until(lambda seen: _completed(seen) >= 2)
            async with working(old.model_copy(update={"build_id": "two"})):
                await make_current(stack, deployment, "two")
                last = await watcher.to_end(limit_s=WAIT_S)
        await here.http.aclose()
    assert last.type == "task.succeeded", last
    watcher.assert_once_and_in_order()
    runs = await runs_of(client, f"task-{task_id}")
    # Never two builds in one run: nothing had to be replayed by code that did not make it.
    of_run = [builds_of(run) for run in runs]
    assert all(len(builds) == 1 for builds in of_run), of_run
    assert of_run[0] == {"one"}
    assert of_run[-1] == {"two"}
    books.assert_no_call_ran_twice(books.ledger(task_id))
    books.assert_nothing_held(caller.organisation_id)


async def test_cancelled_in_a_later_run(stack: RunningStack, caller: Caller, books: Books) -> None:
    client = await _temporal(stack)
    task_id = await caller.submit(**counting(STEPS, ANSWER, pace_ms=1))
    async with caller.watch(task_id) as watcher:
        await _in_another_run(client, task_id)
        await caller.cancel(task_id)
        last = await watcher.to_end()
    assert last.type == "task.cancelled"
    watcher.assert_once_and_in_order()
    task = await caller.task(task_id)
    assert 0 < task["steps"] < STEPS
    books.assert_no_call_ran_twice(books.ledger(task_id))
    books.assert_nothing_held(caller.organisation_id)
    await assert_replays(stack, [f"task-{task_id}"])


async def test_a_wish_to_cancel_outlives_any_run_it_meets(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    """Some of these meet a run at its very end; a wish that its run swallowed would be lost."""
    tasks = [await caller.submit(**counting(40, ANSWER)) for _ in range(6)]
    for number, task_id in enumerate(tasks):
        await asyncio.sleep(0.05 * number)
        await caller.cancel(task_id)
    for task_id in tasks:
        ended = await caller.ended(task_id, limit_s=60)
        assert ended["status"] == "cancelled", ended
        assert ended["steps"] < 40
    books.assert_nothing_held(caller.organisation_id)


async def test_steps_of_several_calls_go_on_in_a_next_run(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    """Which calls were made, and how often, is known to every run."""
    steps = 10
    both = [{"tool": "calculator", "expression": f"{{next}}+{more}"} for more in (0, 5)]
    task = await caller.answered(
        choose_all(*both) + say(ANSWER),
        model=MODEL,
        tools=[{"name": "calculator", "max_calls": 2 * steps}],
        parallel_tool_calls=2,
        limits={"max_steps": steps + 1},
        cache="off",
    )
    assert (task["answer"], task["steps"]) == (ANSWER, steps + 1)
    # Each step's numbers go on from the last result of the one before.
    assert [call["result"] for call in (await caller.steps(task["id"]))[2]["chosen_calls"]] == [
        "12+0 = 12",
        "12+5 = 17",
    ]
    rows = books.rows("select call_id from tool_calls where task_id = %s", task["id"])
    assert len(rows) == len({row["call_id"] for row in rows}) == 2 * steps
    assert len(await runs_of(await _temporal(stack), f"task-{task['id']}")) > 1
    await assert_replays(stack, [f"task-{task['id']}"])
