"""API processes that are ended at any moment: what was answered is in the ledger, once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from tests.integration.openai_surface.conftest import Replicas
from tests.integration.openai_surface.test_money import settled
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, say, words
from tests.upstream import Served

CALLS = 200
SEED = 4711


@pytest.mark.timeout(300)
async def test_rows_are_answered_calls_whatever_the_signal(
    caller: Caller, replicas: Replicas, books: Books, upstream: Served
) -> None:
    await replicas.ready(0, 1, 2)
    chance = random.Random(SEED)
    waiting = list(range(CALLS))
    answered: dict[str, str] = {}
    begun: set[str] = set()
    broken = 0

    async def client(http: httpx2.AsyncClient, own: random.Random) -> None:
        nonlocal broken
        while waiting:
            number = waiting.pop()
            stream = number % 2 == 0
            body = {
                "model": "mock-drip" if number % 8 == 0 else "mock",
                "messages": [{"role": "user", "content": f"call {number}"}],
                "stream": stream,
            }
            url = f"{own.choice(replicas.urls)}/v1/chat/completions"
            try:
                async with http.stream("POST", url, json=body) as answer:
                    if answer.status_code != 200:
                        broken += 1
                        continue
                    task_id = answer.headers["x-overline-task"]
                    begun.add(task_id)
                    text = (await answer.aread()).decode()
            except httpx2.TransportError:
                broken += 1
                await asyncio.sleep(0.05)
                continue
            if not stream or "data: [DONE]" in text:
                answered[task_id] = body["model"]
            else:
                broken += 1
            await asyncio.sleep(0.02)

    async def kill() -> None:
        for how in (signal.SIGTERM, signal.SIGKILL):
            await asyncio.sleep(chance.uniform(0.3, 1.2))
            number = chance.randrange(3)
            replicas.end(number, how)
            await asyncio.to_thread(replicas.gone, number)
            replicas.start(number)

    async with httpx2.AsyncClient(
        timeout=60, headers={"authorization": f"Bearer {caller.token}"}
    ) as http:
        killer = asyncio.create_task(kill())
        await asyncio.gather(*(client(http, random.Random(n)) for n in range(8)))
        await killer
    assert broken
    assert len(answered) + broken == CALLS

    tasks = await _over(caller, books)
    ended = {str(row["task_id"]): row["status"] for row in tasks}
    assert begun <= set(ended)
    rows = books.rows(
        "select * from model_calls where organisation_id = %s", caller.organisation_id
    )
    good = [row for row in rows if row["outcome"] == "succeeded"]
    assert len({row["call_key"] for row in good}) == len(good)
    # What was answered is in the ledger, at its price; what is there besides was asked for, and
    # its client was told nothing, or not all.
    paid = {str(row["task_id"]) for row in good}
    assert set(answered) <= paid
    assert len(paid - set(answered)) <= broken
    for row in good:
        assert (row["uncached_input_tokens"], row["output_tokens"]) == (2, 32)
    # Nobody pays for what broke off.
    assert all(
        row["billed_usd"] == 0 for row in rows if row["outcome"] not in ("succeeded", "cancelled")
    )
    assert {status for task, status in ended.items() if task in paid} == {"succeeded"}
    # Each task has its row.
    assert {str(row["task_id"]) for row in rows} == set(ended)
    books.assert_nothing_held(caller.organisation_id)
    await replicas.ready(0, 1, 2)


async def _over(caller: Caller, books: Books) -> list[dict[str, Any]]:
    """Wait until every call of the tenant is over."""
    for _ in range(1200):
        tasks = books.rows(
            "select task_id, status, finished_at from tasks where organisation_id = %s",
            caller.organisation_id,
        )
        if all(task["finished_at"] for task in tasks):
            return tasks
        await asyncio.sleep(0.1)
    raise AssertionError([task for task in tasks if not task["finished_at"]])


@pytest.mark.timeout(120)
async def test_a_call_is_ended_by_any_process_and_when_its_own_dies(
    caller: Caller, replicas: Replicas, books: Books, upstream: Served
) -> None:
    await replicas.ready(0)
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": say(words(400), pace_ms=20)}],
        "stream": True,
    }
    headers = {"authorization": f"Bearer {caller.token}"}
    tasks: list[str] = []
    async with httpx2.AsyncClient(timeout=60, headers=headers) as http:
        for frozen in (False, True):
            with contextlib.suppress(httpx2.HTTPError):
                async with http.stream(
                    "POST", f"{replicas.urls[0]}/v1/chat/completions", json=body
                ) as answer:
                    tasks.append(answer.headers["x-overline-task"])
                    seen = 0
                    async for _ in answer.aiter_lines():
                        seen += 1
                        if seen == 20:
                            if frozen:
                                replicas.end(0, signal.SIGSTOP)
                            # Asked of the stack's own process, which does not make it.
                            assert (await caller.cancel(tasks[-1]))["requested"] is True
                            if frozen:
                                # It never heard of it: whoever takes the call over does.
                                replicas.end(0, signal.SIGKILL)
            if not frozen:
                (row,) = await settled(books, caller, 1)
                assert row["ended_at"] - row["started_at"] < timedelta(seconds=10)
    replicas.gone(0)
    replicas.start(0)
    for task_id in tasks:
        assert (await caller.ended(task_id))["status"] == "cancelled"
    rows = books.ledger(*tasks)
    assert {row["outcome"] for row in rows} <= {"cancelled", "lost"}
    assert all(row["billed_usd"] > 0 for row in rows if row["outcome"] == "cancelled")
    await books.assert_attempts_equal(rows)
    books.assert_nothing_held(caller.organisation_id)
    assert (await caller.cancel(tasks[0]))["requested"] is False
    await replicas.ready(0)
