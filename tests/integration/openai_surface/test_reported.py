"""What others report of gateways, tried here (docs/reported-failures.md)."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import openai
import psycopg
import pytest

from store.provision import create_key
from tests.integration.openai_surface.conftest import client_of
from tests.integration.openai_surface.test_limits import team_of
from tests.integration.openai_surface.test_money import HI, settled
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, say
from tests.upstream import KEY, Served

# A client that is killed while it reads: it says when the first words are there.
CLIENT = """
import socket, sys, time
host, port, request = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
with socket.create_connection((host, port)) as connection:
    connection.sendall(request)
    received = b""
    while sys.argv[4].encode() not in received:
        received += connection.recv(65536)
    print("reading", flush=True)
    time.sleep(60)
"""


async def post(caller: Caller, body: dict[str, Any], **headers: str) -> httpx2.Response:
    return await caller.http.post("/v1/chat/completions", json=body, headers=headers)


async def gone(upstream: Served, before: int, *, within_s: float = 5) -> None:
    """Wait until the upstream has seen one more client leave."""
    until = time.monotonic() + within_s
    while upstream.stats.client_gone == before:
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


async def test_each_way_in_is_one_call_and_the_sum_is_the_upstreams(
    caller: Caller, sdk: openai.AsyncOpenAI, books: Books, upstream: Served
) -> None:
    stats = upstream.stats
    before = stats.prompt_tokens, stats.completion_tokens
    for stream in (False, True):
        for model in ("mock", "mock-odd"):
            made: Any = await sdk.chat.completions.create(model=model, messages=HI, stream=stream)
            answer: Any = await sdk.responses.create(model=model, input="hi", stream=stream)
            if stream:
                _ = [each async for each in made], [each async for each in answer]
    ours: Any = [{"role": "user", "content": say("x")}]
    raws = [
        await sdk.chat.completions.with_raw_response.create(
            model="after-500", messages=ours, temperature=0
        )
        for _ in range(2)
    ]
    headers = [
        (raw.headers["x-overline-cache"], raw.headers["x-overline-attempts"]) for raw in raws
    ]
    assert headers == [("miss", "2"), ("hit", "0")]
    rows = await settled(books, caller, 11)
    theirs = [row for row in rows if row["model"] in ("mock", "mock-odd")]
    assert [row["outcome"] for row in theirs] == ["succeeded"] * 8
    assert len({row["call_key"] for row in theirs}) == 8
    assert [(row["outcome"], row["billed_usd"] > 0) for row in rows[8:]] == [
        ("failed", False),
        ("succeeded", True),
        ("cached", False),
    ]
    assert rows[8]["call_key"] == rows[9]["call_key"]
    booked = (
        sum(row["uncached_input_tokens"] + row["cached_input_tokens"] for row in theirs),
        sum(row["output_tokens"] for row in theirs),
    )
    assert booked == (stats.prompt_tokens - before[0], stats.completion_tokens - before[1])
    books.assert_nothing_held(caller.organisation_id)


async def test_a_stream_costs_what_the_whole_answer_costs(
    caller: Caller, sdk: openai.AsyncOpenAI, books: Books
) -> None:
    words: Any = [{"role": "user", "content": "a b c d e f g h"}]
    usual = Decimal(8 + 64) / 1_000_000
    expected = {
        "mock": usual,
        "mock-odd": usual,
        "mock-finish": usual,
        # Six of eight were cached, at half the price.
        "mock-cached": Decimal(2 + 3 + 64) / 1_000_000,
        "mock-reasoning": Decimal(8 + 64 + 20 * 4) / 1_000_000,
        # Nobody counted: the usual length of such a text, and a token each of its 32 pieces.
        "mock-nousage": Decimal(4 + 1 + 3 + 64) / 1_000_000,
    }
    for model in expected:
        await sdk.chat.completions.create(model=model, messages=words)
        async for _ in await sdk.chat.completions.create(model=model, messages=words, stream=True):
            pass
    rows = await settled(books, caller, 2 * len(expected))
    for place, (model, usd) in enumerate(expected.items()):
        plain, streamed = rows[2 * place : 2 * place + 2]
        assert plain["billed_usd"] == streamed["billed_usd"] == usd, model
        told = "estimate" if model == "mock-nousage" else "upstream"
        assert (plain["usage_source"], streamed["usage_source"]) == (told, told)


async def test_whoever_leaves_in_whatever_way_pays_what_was_made(
    caller: Caller, stack: RunningStack, books: Books, upstream: Served
) -> None:
    alone = {"scope": "key", "scope_id": str(caller.key_id), "concurrent_calls": 1}
    assert (await caller.http.post("/v1/limits", json=alone)).status_code == 200

    # A whole answer is waited for, and the connection is closed.
    before = upstream.stats.client_gone
    with pytest.raises(httpx2.TimeoutException):
        await caller.http.post(
            "/v1/chat/completions", json={"model": "mock-mute", "messages": HI}, timeout=0.7
        )
    await gone(upstream, before)
    (silent,) = await settled(books, caller, 1)
    assert (silent["outcome"], silent["output_tokens"]) == ("cancelled", 0)
    # What the upstream may have read is in the ledger with its price; who got nothing owes nothing.
    assert silent["cost_usd"] == Decimal(silent["uncached_input_tokens"]) / 1_000_000 > 0
    assert (silent["billed_usd"], silent["waste_cause"]) == (0, "cancelled")

    # The client is killed while it reads.
    for stream, seen in ((True, "tok"), (False, "")):
        body = json.dumps({"model": "mock-drip", "messages": HI, "stream": stream})
        parts = httpx2.URL(caller.base_url)
        request = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.host}:{parts.port}\r\n"
            f"Authorization: Bearer {caller.token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        )
        before, asked = upstream.stats.client_gone, upstream.stats.requests
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CLIENT, str(parts.host), str(parts.port), request, seen),
            stdout=asyncio.subprocess.PIPE,
        )
        assert client.stdout is not None
        await client.stdout.readline()
        while upstream.stats.requests == asked:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        client.kill()
        await gone(upstream, before)
        await client.wait()
    rows = (await settled(books, caller, 3))[1:]
    for row in rows:
        assert (row["outcome"], row["usage_source"]) == ("cancelled", "estimate")
        assert 0 < row["output_tokens"] < 32
        made = row["uncached_input_tokens"] + 2 * row["output_tokens"]
        assert row["billed_usd"] == Decimal(made) / 1_000_000
    books.assert_nothing_held(caller.organisation_id)
    # The slot of each is free.
    assert (await post(caller, {"model": "mock", "messages": HI})).status_code == 200


async def test_nobody_hears_two_answers_in_one(
    caller: Caller, sdk: openai.AsyncOpenAI, upstream: Served
) -> None:
    ours: Any = [{"role": "user", "content": say("Ours, and whole.")}]
    for fault in ("-500", "-429", "-inband"):
        # Before the first word another model may answer; each is asked once.
        before = upstream.stats.by_model.get(f"mock{fault}", 0)
        text = ""
        async for chunk in await sdk.chat.completions.create(
            model=f"after{fault}", messages=ours, stream=True
        ):
            text += chunk.choices[0].delta.content or ""
        assert text == "Ours, and whole."
        assert upstream.stats.by_model[f"mock{fault}"] == before + 1
    said = ""

    async def read() -> None:
        nonlocal said
        async for part in await sdk.chat.completions.create(
            model="after-cut", messages=HI, stream=True
        ):
            said += part.choices[0].delta.content or ""

    with pytest.raises(openai.APIError):
        await read()
    assert said
    assert ("tok " * 16).startswith(said)


async def test_an_answer_is_nobody_elses(
    caller: Caller, stack: RunningStack, upstream: Served
) -> None:
    other = Caller.made(stack.admin_url, caller.base_url)
    body = {"model": "mock", "messages": HI, "temperature": 0}
    asked = upstream.stats.requests
    first = await post(caller, body, **{"Idempotency-Key": "shared"})
    # Neither its cache nor its idempotency keys.
    theirs = await post(other, body, **{"Idempotency-Key": "shared"})
    assert (first.headers["x-overline-cache"], theirs.headers["x-overline-cache"]) == (
        "miss",
        "miss",
    )
    assert "idempotency-replayed" not in theirs.headers
    assert first.json()["id"] != theirs.json()["id"]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    wishes: list[dict[str, Any]] = [
        {"model": "mock-other"},
        {"tools": [tool]},
        {"response_format": {"type": "json_object"}},
        {"seed": 1},
    ]
    for wish in wishes:
        # Even where the caller wants it: another model, function, form or seed is another call.
        again = await post(caller, body | wish, **{"X-Overline-Cache": "on"})
        assert again.headers["x-overline-cache"] == "miss", wish
    assert upstream.stats.requests - asked == 2 + len(wishes)
    await other.http.aclose()


async def test_what_costs_nothing_is_free_and_what_has_no_price_is_not_served(
    poor: Callable[[Decimal], Caller], books: Books, upstream: Served
) -> None:
    caller = poor(Decimal("0.0001"))
    while (await post(caller, {"model": "mock", "messages": HI})).status_code == 200:
        pass
    asked = upstream.stats.requests
    assert (await post(caller, {"model": "unpriced", "messages": HI})).status_code == 404
    assert (await post(caller, {"model": "mock", "messages": HI})).status_code == 402
    assert upstream.stats.requests == asked
    assert (await post(caller, {"model": "free", "messages": HI})).status_code == 200
    (row,) = books.rows(
        "select * from model_calls where organisation_id = %s and model = 'free'",
        caller.organisation_id,
    )
    assert (row["billed_usd"], row["output_tokens"]) == (0, 32)
    await caller.http.aclose()


async def test_the_key_of_an_upstream_is_nowhere(
    caller: Caller, stack: RunningStack, upstream: Served
) -> None:
    told = ""
    for model in ("mock", "mock-400", "mock-401", "mock-500", "mock-late", "mock-inband"):
        for stream in (False, True):
            # The scripted one repeats the key in what it says of a status.
            answer = await post(caller, {"model": model, "messages": HI, "stream": stream})
            told += answer.text + str(answer.headers)
    assert upstream.stats.last_headers["authorization"] == f"Bearer {KEY}"
    told += (await caller.http.get("/metrics")).text
    canaries = [KEY, base64.b64encode(KEY.encode()).decode(), KEY.removeprefix("sk-")]
    for canary in canaries:
        assert canary not in told
        for path in stack.folder.rglob("*.log*"):
            if path.is_file():
                assert canary.encode() not in path.read_bytes(), path
    with psycopg.connect(stack.admin_url) as superuser:
        for (table,) in superuser.execute(
            "select c.oid::regclass::text from pg_class c where c.relkind = 'r'"
            " and c.relnamespace = 'public'::regnamespace"
        ).fetchall():
            found = superuser.execute(
                f"select count(*) from {table} t where t::text like any (%s)",
                ([f"%{canary}%" for canary in canaries],),
            ).fetchone()
            assert found == (0,), table


async def test_a_repetition_costs_nothing_while_its_first_is_made(
    caller: Caller, stack: RunningStack, replicas: Any, upstream: Served, books: Books
) -> None:
    """One key at four API processes, whole and streamed: one call."""
    await replicas.ready(0, 1, 2)
    asked = upstream.stats.requests
    urls = [caller.base_url, *replicas.urls]

    async def ask(url: str, stream: bool) -> str:
        there = Caller(url, caller.token, caller.organisation_id, caller.key_id)
        text = ""
        async with client_of(there) as client:
            made: Any = await client.chat.completions.create(
                model="mock-drip",
                messages=HI,
                stream=stream,
                extra_headers={"Idempotency-Key": "one"},
            )
            if not stream:
                return str(made.choices[0].message.content)
            async for chunk in made:
                text += chunk.choices[0].delta.content or ""
        await there.http.aclose()
        return text

    said = await asyncio.gather(*(ask(url, stream) for url in urls for stream in (False, True)))
    assert set(said) == {"tok " * 32}
    assert upstream.stats.requests == asked + 1
    await settled(books, caller, 1)


@pytest.mark.timeout(200)
async def test_many_at_many_processes_never_lock_each_other_out(
    caller: Caller, stack: RunningStack, replicas: Any, books: Books, upstream: Served
) -> None:
    """Four processes, fifty users in any order, two tags each, budgets at every level."""
    await replicas.ready(0, 1, 2)
    for scope, subject in (("user", "*"), ("tag", "a=*"), ("tag", "b=*"), ("organisation", None)):
        rule = {"scope": scope, "subject": subject, "period": "day", "cap_usd": "100"}
        answer = await caller.http.post("/v1/budgets", json=rule)
        assert answer.status_code == 200, answer.text
    team = team_of(stack, caller)
    for scope, subject in (("key", caller.key_id), ("team", team), ("organisation", None)):
        limit = {"scope": scope, "requests_per_minute": 100_000, "concurrent_calls": 10_000}
        answer = await caller.http.post(
            "/v1/limits", json=limit | ({"scope_id": str(subject)} if subject else {})
        )
        assert answer.status_code == 200, answer.text
    tokens = [
        caller.token,
        create_key(stack.admin_url, caller.organisation_id, team, "second").token,
    ]
    log = stack.folder / "logs" / "postgres.log"
    logged = log.stat().st_size if log.exists() else 0
    urls = [caller.base_url, *replicas.urls]
    room = asyncio.Semaphore(50)

    async with httpx2.AsyncClient(timeout=60) as http:

        async def call(number: int) -> httpx2.Response:
            async with room:
                return await http.post(
                    f"{urls[number % 4]}/v1/chat/completions",
                    json={
                        "model": "mock",
                        "messages": HI,
                        # Neither in the order of their names nor of their first call.
                        "user": f"user {number * 37 % 50}",
                        "metadata": {"a": str(number * 11 % 7), "b": str(number * 5 % 3)},
                    },
                    headers={"authorization": f"Bearer {tokens[number % 2]}"},
                )

        answers = await asyncio.gather(*(call(number) for number in range(400)))
    assert {answer.status_code for answer in answers} == {200}
    rows = await settled(books, caller, 400)
    answered = {answer.headers["x-overline-task"] for answer in answers}
    assert {str(row["task_id"]) for row in rows} == answered
    assert len(answered) == 400
    _assert_no_deadlock(log, logged)
    # Every budget has what its own calls cost, to the last digit.
    billed = sum(row["billed_usd"] for row in rows)
    spent = books.rows(
        "select split_part(window_key, '|', 1) as subject, scope, sum(spent_usd) as usd,"
        " sum(held_usd) as held from budgets where organisation_id = %s and scope <> 'task'"
        " and window_key <> '' group by 1, 2",
        caller.organisation_id,
    )
    assert {row["held"] for row in spent} == {0}
    users = {row["subject"]: row["usd"] for row in spent if row["scope"] == "user"}
    assert len(users) == 50
    assert users == {
        user: sum(row["billed_usd"] for row in rows if row["user_id"] == user) for user in users
    }
    tags = [row["usd"] for row in spent if row["scope"] == "tag"]
    assert (len(tags), sum(tags)) == (10, 2 * billed)
    limits = (await caller.http.get("/v1/limits")).json()["limits"]
    assert [limit["open_calls"] for limit in limits] == [0, 0, 0]


def _assert_no_deadlock(log: Path, after: int) -> None:
    with log.open("rb") as read:
        read.seek(after)
        assert b"deadlock" not in read.read()
