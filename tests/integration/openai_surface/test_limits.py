"""Limits at concurrency, on one and on three API processes: every count is right."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import httpx2
import psycopg
import pytest
import pytest_asyncio

from store.provision import create_key
from tests.integration.openai_surface.conftest import Replicas
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, say

_SPAN = re.compile(r"(\d+m)?[\d.]+(s|ms)")


@dataclass
class Prober:
    """Asks as many as there are API processes, in turn, as one key."""

    urls: list[str]
    admin: Caller
    stack: RunningStack
    http: httpx2.AsyncClient = field(default_factory=lambda: httpx2.AsyncClient(timeout=60))

    def __post_init__(self) -> None:
        self._turns = itertools.cycle(self.urls)

    async def key(self, **caps: int) -> str:
        """Make a key with limits, and return its token."""
        made = create_key(
            self.stack.admin_url,
            self.admin.organisation_id,
            team_of(self.stack, self.admin),
            f"limited {next(_NUMBERS)}",
        )
        answer = await self.admin.http.post(
            "/v1/limits", json={"scope": "key", "scope_id": str(made.key_id), **caps}
        )
        assert answer.status_code == 200, answer.text
        return made.token

    async def call(self, key: str, model: str = "mock", **fields: Any) -> httpx2.Response:
        """Make one call."""
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 32}
        return await self.http.post(
            f"{next(self._turns)}/v1/chat/completions",
            json={name: value for name, value in (body | fields).items() if value is not None},
            headers={"authorization": f"Bearer {key}"},
        )

    async def at_once(self, count: int, key: str, *model: str, **fields: Any) -> list[Any]:
        """Make so many at once."""
        return list(await asyncio.gather(*(self.call(key, *model, **fields) for _ in range(count))))

    async def cut(self, key: str) -> None:
        """Begin a stream and go away."""
        body = {
            "model": "mock-drip",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
        }
        async with self.http.stream(
            "POST",
            f"{next(self._turns)}/v1/chat/completions",
            json=body,
            headers={"authorization": f"Bearer {key}"},
        ) as answer:
            assert answer.status_code == 200
            seen = 0
            async for _ in answer.aiter_lines():
                seen += 1
                if seen == 6:
                    break


_NUMBERS = itertools.count()


def team_of(stack: RunningStack, caller: Caller) -> Any:
    with psycopg.connect(stack.admin_url) as connection:
        row = connection.execute(
            "select team_id from teams where organisation_id = %s", (caller.organisation_id,)
        ).fetchone()
    assert row is not None
    return row[0]


def counted(answers: list[Any]) -> dict[int, int]:
    broken = [answer.text for answer in answers if answer.status_code in (500, 503)]
    assert not broken, broken
    return dict(Counter(answer.status_code for answer in answers))


@pytest_asyncio.fixture(params=[1, 3], ids=["one process", "three processes"])
async def prober(
    request: pytest.FixtureRequest, stack: RunningStack, caller: Caller, replicas: Replicas
) -> AsyncIterator[Prober]:
    """The stack's API process, or that and two more."""
    await replicas.ready(0, 1)
    urls = [stack.state().urls["api"], *replicas.urls][: request.param]
    async with httpx2.AsyncClient(timeout=60) as http:
        yield Prober(urls, caller, stack, http)


async def test_every_count_is_right(prober: Prober) -> None:
    # RPM 10, 40 at once.
    key = await prober.key(requests_per_minute=10)
    answers = await prober.at_once(40, key)
    assert counted(answers) == {200: 10, 429: 30}
    for answer in answers:
        assert answer.headers["x-ratelimit-limit-requests"] == "10"
        assert 0 <= int(answer.headers["x-ratelimit-remaining-requests"]) < 10
        assert _SPAN.fullmatch(answer.headers["x-ratelimit-reset-requests"])
        if answer.status_code == 429:
            assert 1 <= int(answer.headers["retry-after"]) < 120
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
            assert error["overline_code"] == "OVL-3007"

    # 2 at once, 10 slow ones; the slots are free afterwards.
    key = await prober.key(concurrent_calls=2)
    answers = await prober.at_once(10, key, "mock-slow")
    assert counted(answers) == {200: 2, 429: 8}
    assert [(await prober.call(key)).status_code for _ in range(3)] == [200] * 3

    # One at once: clients that leave and upstreams that fail lose no slot.
    key = await prober.key(concurrent_calls=1)
    for _ in range(3):
        await prober.cut(key)
        await asyncio.sleep(0.6)
    assert [(await prober.call(key)).status_code for _ in range(2)] == [200] * 2
    key = await prober.key(concurrent_calls=1)
    assert [(await prober.call(key, "mock-500")).status_code for _ in range(3)] == [500] * 3
    assert [(await prober.call(key, "brief-mute")).status_code for _ in range(2)] == [504] * 2
    assert [(await prober.call(key, messages=[{}])).status_code for _ in range(3)] == [400] * 3
    assert [(await prober.call(key)).status_code for _ in range(2)] == [200] * 2

    # What one limit refuses uses up nothing of another.
    key = await prober.key(requests_per_minute=3, concurrent_calls=1)
    slow = asyncio.ensure_future(prober.call(key, "mock-slow"))
    await asyncio.sleep(0.5)
    assert [(await prober.call(key)).status_code for _ in range(3)] == [429] * 3
    assert (await slow).status_code == 200
    assert [(await prober.call(key)).status_code for _ in range(2)] == [200] * 2

    # Tokens: reserved at their most.
    key = await prober.key(tokens_per_minute=100)
    assert counted(await prober.at_once(20, key)) in ({200: 2, 429: 18}, {200: 3, 429: 17})
    key = await prober.key(tokens_per_minute=100)
    assert counted(await prober.at_once(20, key, max_tokens=None))[200] in (2, 3)


async def test_a_budget_lets_exactly_those_through_that_fit(
    prober: Prober, poor: Callable[[Decimal], Caller], books: Books
) -> None:
    # 32 tokens at $2 a million, and a word at $1: $0.000065 each, worst case some bytes more.
    caller = poor(Decimal("0.0002"))
    first = await prober.at_once(20, caller.token)
    made = counted(first)
    assert made[402] + made[200] == 20
    assert made[200] <= 3
    assert {answer.headers["x-should-retry"] for answer in first if answer.status_code == 402} == {
        "false"
    }
    await caller.http.aclose()

    # Nobody has heard of these users: each has a budget from the first call on, also when twenty of
    # them come at one moment. Slow, so that all are in flight together: what is held is their most.
    (first_row,) = books.rows(
        "select amount_usd from holds where organisation_id = %s order by created_at limit 1",
        caller.organisation_id,
    )
    rule = {"scope": "user", "subject": "*", "period": "day"}
    answer = await prober.admin.http.post(
        "/v1/budgets", json={**rule, "cap_usd": str(first_row["amount_usd"] * 2)}
    )
    assert answer.status_code == 200, answer.text
    key = await prober.key(requests_per_minute=1000)
    answers = await asyncio.gather(
        *(prober.at_once(20, key, "mock-slow", user=user) for user in ("ada", "grace"))
    )
    assert [counted(each) for each in answers] == [{200: 2, 402: 18}] * 2


async def test_a_task_waits_for_room_and_goes_on(stack: RunningStack, caller: Caller) -> None:
    answer = await caller.http.post(
        "/v1/limits",
        json={"scope": "key", "scope_id": str(caller.key_id), "requests_per_minute": 20},
    )
    assert answer.status_code == 200, answer.text
    body = {"model": "scripted", "messages": [{"role": "user", "content": say("a b")}]}
    for _ in range(20):
        await caller.http.post("/v1/chat/completions", json=body)
    made = await caller.http.post("/v1/tasks", json={"input": say("at last"), "model": "scripted"})
    task_id = made.json()["id"]
    for _ in range(200):
        task = await caller.task(task_id)
        if task["status"] == "succeeded":
            break
        assert task["status"] in ("accepted", "running")
        await asyncio.sleep(0.1)
    assert task["answer"] == "at last"
