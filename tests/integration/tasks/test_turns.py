"""Whose turn it is when more calls wait than the engine takes: orders and counts, never times."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import RateLimit
from temporalio.api.workflowservice.v1 import UpdateTaskQueueConfigRequest
from temporalio.client import Client

from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, say, words
from tests.integration.tasks.places import MODEL, place


def _call(pace_ms: int = 4, **fields: Any) -> dict[str, Any]:
    question = f"{uuid4()} " + say(words(8), pace_ms=pace_ms)
    return {"input": question, "model": MODEL, "cache": "off", **fields}


async def _waiting(books: Books, caller: Caller, count: int) -> None:
    """Wait until so many of a team's calls have a prompt, and so are on their way to the engine."""
    asked = "select count(*)::int as n from generations where organisation_id = %s"
    async with asyncio.timeout(90):
        # Elsewhere: API and worker of these tests live in this thread.
        while (await asyncio.to_thread(books.rows, asked, caller.organisation_id))[0]["n"] < count:
            await asyncio.sleep(0.1)


def _started(books: Books, *task_ids: str) -> list[datetime]:
    """When the calls of tasks that have ended were begun, in their order."""
    return [row["started_at"] for row in books.ledger(*task_ids)]


async def _ended(caller: Caller, task_ids: list[str]) -> None:
    for task_id in task_ids:
        read = await caller.ended(task_id)
        assert read["status"] == "succeeded", read


async def test_a_teams_single_call_comes_after_a_few_of_another_teams_dozens(
    stack: RunningStack, books: Books
) -> None:
    async with place(stack, slots=1) as here:
        many, one = here.team(), here.team()
        theirs = await asyncio.gather(*(many.submit(**_call()) for _ in range(40)))
        await _waiting(books, many, 40)
        single = await one.submit(**_call())
        await _waiting(books, one, 1)
        (arrived,) = books.rows(
            "select g.created_at as at from generations g where g.organisation_id = %s",
            one.organisation_id,
        )
        await _ended(one, [single])
        await _ended(many, theirs)
    (begun,) = _started(books, single)
    before = [at for at in _started(books, *theirs) if arrived["at"] < at < begun]
    after = [at for at in _started(books, *theirs) if at > begun]
    assert len(before) <= 4, f"{len(before)} calls went first"
    # Otherwise nothing was shown.
    assert len(after) >= 10, f"only {len(after)} were still waiting"


async def test_batch_waits_behind_default_and_both_behind_interactive(
    stack: RunningStack, books: Books
) -> None:
    async with place(stack, slots=1) as here:
        team = here.team("interactive")
        batch = await asyncio.gather(*(team.submit(**_call(priority="batch")) for _ in range(20)))
        await _waiting(books, team, 20)
        default = await asyncio.gather(*(team.submit(**_call(pace_ms=20)) for _ in range(4)))
        await _waiting(books, team, 24)
        urgent = await team.submit(**_call(priority="interactive"))
        await _ended(team, [*batch, *default, urgent])
    begun = {
        name: _started(books, *ids)
        for name, ids in (("batch", batch), ("default", default), ("interactive", [urgent]))
    }
    # One may have been on its way to the worker when the other arrived.
    assert sum(at < begun["default"][-1] for at in begun["batch"]) < 20 - 8
    assert sum(at > begun["interactive"][0] for at in begun["default"]) >= 1
    assert max(begun["batch"]) > max(begun["default"])


async def test_going_before_others_takes_a_scope(caller: Caller) -> None:
    with pytest.raises(Refused) as refused:
        await caller.submit(**_call(priority="interactive"))
    assert (refused.value.status, refused.value.problem["scope"]) == (403, "interactive")
    with pytest.raises(Refused) as refused:
        await caller.submit(**_call(priority="urgent"))
    assert refused.value.status == 422


async def _why(caller: Caller, code: str, task_ids: list[str]) -> dict[str, Any]:
    """Ask why tasks do not move until the first reason of one of them has that code."""
    async with asyncio.timeout(60):
        while True:
            for task_id in task_ids:
                read = (await caller.request("GET", f"/v1/tasks/{task_id}/why")).json()
                if read["reasons"][0]["code"] == code:
                    facts: dict[str, Any] = read["reasons"][0]["facts"]
                    return facts
            await asyncio.sleep(0.2)


async def test_a_call_behind_others_says_so(stack: RunningStack, books: Books) -> None:
    async with place(stack, slots=1) as here:
        team = here.team()
        # Long enough that its worker, with its only slot taken, has long not asked for calls.
        first = await team.submit(**_call(pace_ms=400))
        await _waiting(books, team, 1)
        others = await asyncio.gather(*(team.submit(**_call()) for _ in range(3)))
        await _waiting(books, team, 4)
        facts = await _why(team, "waiting_for_slot", others)
        assert facts["queue"] == here.queue
        assert facts["waiting"] >= 2
        for task_id in (first, *others):
            await team.cancel(task_id)
            assert (await team.ended(task_id))["status"] in ("cancelled", "succeeded")


async def test_a_limit_on_the_servers_side_holds_for_model_calls(
    stack: RunningStack, books: Books
) -> None:
    """Eager activities never see the queue, and so would run past its limit."""
    async with place(stack, slots=16) as here:
        client = await Client.connect(here.settings.temporal_address)
        team = here.team()
        await client.workflow_service.update_task_queue_config(
            UpdateTaskQueueConfigRequest(
                namespace=client.namespace,
                identity="tests",
                task_queue=here.queue,
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
                update_queue_rate_limit=UpdateTaskQueueConfigRequest.RateLimitUpdate(
                    rate_limit=RateLimit(requests_per_second=1.0), reason="a test"
                ),
            )
        )
        calls = await asyncio.gather(*(team.submit(**_call(pace_ms=0)) for _ in range(8)))
        await _waiting(books, team, 8)
        facts = await _why(team, "queue_limited", calls)
        assert facts["limit_per_s"] == 1
        await _ended(team, calls)
    begun = sorted(_started(books, *calls))
    # The limit is kept by the second, each of which may begin with one that was saved up.
    assert (begun[-1] - begun[0]).total_seconds() >= 5
