"""A workflow that an operator resets in Temporal does again what it did, and nothing is done twice.

A reset ends the run and begins another one that knows the first events only: every activity after
them is asked for again. What they did is in Postgres under keys of the task, so it stands.
"""

from __future__ import annotations

import time
from uuid import uuid4

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHistory

from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, choose, say, words
from workflows.client import connect_kwargs

MODEL = "scripted"
TEXT = words(60)


def _decision_before(history: WorkflowHistory, activity: str) -> int:
    """The workflow task that asked for the first activity of a kind."""
    return next(
        event.activity_task_scheduled_event_attributes.workflow_task_completed_event_id
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name == activity
    )


async def _reset(stack: RunningStack, task_id: str, before: str) -> None:
    client = await Client.connect(stack.settings.temporal_address, **connect_kwargs(stack.settings))
    handle = client.get_workflow_handle(f"task-{task_id}")
    history = await handle.fetch_history()
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=f"task-{task_id}"),
            reason="by the test",
            request_id=str(uuid4()),
            workflow_task_finish_event_id=_decision_before(history, before),
        )
    )


async def test_a_running_task_that_is_reset_ends_as_if_it_had_not_been(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    before, booked = await books.metered(MODEL), books.booked(MODEL)
    question = (
        f"{uuid4()} "
        + choose({"tool": "calculator", "expression": "6*7"})
        + choose({"tool": "calculator", "expression": "6*8"})
        + say(TEXT, pace_ms=25)
    )
    task_id = await caller.submit(
        question,
        model=MODEL,
        tools=[{"name": "calculator", "max_calls": 2}],
        sampling={"max_tokens": 2000},
    )
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text(3)) > 20)
        await _reset(stack, task_id, "tools.calculator")
        # Longer than the API takes to look for workflows that were ended from outside.
        began = time.monotonic()
        last = await watcher.to_end(limit_s=90)
        assert last.type == "task.succeeded", (last, time.monotonic() - began)
    watcher.assert_once_and_in_order()
    assert watcher.text(3) == TEXT
    rows = books.ledger(task_id)
    books.assert_no_call_ran_twice(rows)
    useful = [
        row["output_tokens"] - row["wasted_output_tokens"] for row in rows if row["step"] == 3
    ]
    assert sum(useful) == len(TEXT) + 1
    made = books.rows("select call_id, attempt from tool_calls where task_id = %s", task_id)
    assert [row["attempt"] for row in made] == [1, 1]
    await books.assert_attempts_equal(rows)
    assert await books.metered(MODEL) - before == books.booked(MODEL) - booked
    books.assert_nothing_held(caller.organisation_id)


async def test_the_run_that_a_reset_ended_does_not_end_its_task(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    """Whoever looks for terminated workflows finds it, while the task goes on in another run."""
    task_id = await caller.submit(
        f"{uuid4()} " + say(words(250), pace_ms=20), model=MODEL, sampling={"max_tokens": 4000}
    )
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 20)
        await _reset(stack, task_id, "generation.generate")
        last = await watcher.to_end(limit_s=90)
    assert last.type == "task.succeeded", last
    watcher.assert_once_and_in_order()
    assert watcher.text() == words(250)
    books.assert_nothing_held(caller.organisation_id)


async def test_a_finished_task_that_is_reset_stays_as_it_ended(
    stack: RunningStack, caller: Caller, books: Books
) -> None:
    question = (
        f"{uuid4()} " + choose({"tool": "calculator", "expression": "6*7"}) + say("It is 42.")
    )
    tools = [{"name": "calculator", "must_call": True}]
    task = await caller.answered(question, model=MODEL, tools=tools, cache="off")
    rows = books.ledger(task["id"])
    client = await Client.connect(stack.settings.temporal_address, **connect_kwargs(stack.settings))
    await client.get_workflow_handle(f"task-{task['id']}").result()
    await _reset(stack, task["id"], "gateway.admit")
    await client.get_workflow_handle(f"task-{task['id']}").result()
    assert await caller.task(task["id"]) == task
    assert books.ledger(task["id"]) == rows
    made = books.rows("select attempt from tool_calls where task_id = %s", task["id"])
    assert [row["attempt"] for row in made] == [1]
    books.assert_nothing_held(caller.organisation_id)
