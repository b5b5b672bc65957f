"""What calls of the fast lane cost, who refuses them, and what becomes of one nobody listens to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import openai
import pytest

from store import audit
from store.database import Database
from tests.integration.openai_surface.conftest import client_of
from tests.integration.running import RunningStack
from tests.integration.tasks.caller import Caller, say, words
from tests.upstream import Served

HI: Any = [{"role": "user", "content": "hi"}]


async def settled(books: Any, caller: Caller, count: int) -> list[dict[str, Any]]:
    """Wait until so many rows of the ledger are there."""
    for _ in range(200):
        rows: list[dict[str, Any]] = books.rows(
            "select * from model_calls where organisation_id = %s order by started_at",
            caller.organisation_id,
        )
        if len(rows) >= count:
            break
        await asyncio.sleep(0.05)
    assert len(rows) == count
    return rows


async def test_every_call_is_one_row_and_the_books_agree(
    caller: Caller, sdk: openai.AsyncOpenAI, books: Any, upstream: Served
) -> None:
    first = await sdk.chat.completions.create(
        model="mock", messages=HI, user="ada", metadata={"p": "x"}
    )
    assert (await sdk.chat.completions.retrieve(first.id)).to_dict()["metadata"] == {"p": "x"}
    async for _ in await sdk.chat.completions.create(model="mock", messages=HI, stream=True):
        pass
    await sdk.responses.create(model="mock", input="hi")
    await sdk.chat.completions.create(
        model="mock-cached", messages=[{"role": "user", "content": "a b c d e f g h"}]
    )
    await sdk.chat.completions.create(model="mock-reasoning", messages=HI)
    plain, streamed, response, cached, thinking = await settled(books, caller, 5)
    usual = Decimal(1 * 1 + 32 * 2) / 1_000_000
    assert plain["billed_usd"] == streamed["billed_usd"] == response["billed_usd"] == usual
    assert (plain["user_id"], plain["tags"]) == ("ada", {"p": "x"})
    assert plain["usage_source"] == "upstream"
    assert (
        cached["billed_usd"]
        == Decimal("2") / 1_000_000 + Decimal("3") / 1_000_000 + Decimal(64) / 1_000_000
    )
    assert thinking["billed_usd"] == Decimal(1 + 64 + 20 * 4) / 1_000_000
    books.assert_nothing_held(caller.organisation_id)
    for row in (plain, streamed):
        task = await caller.task(str(row["task_id"]))
        assert task["status"] == "succeeded"


async def test_the_ledger_equals_the_engine(
    caller: Caller, sdk: openai.AsyncOpenAI, books: Any
) -> None:
    for stream in (False, True):
        made = await sdk.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": say("abc")}], stream=stream
        )
        if stream:
            async for _ in made:  # type: ignore[union-attr]
                pass
    await books.assert_attempts_equal(await settled(books, caller, 2))
    books.assert_nothing_held(caller.organisation_id)


async def test_a_spent_budget_is_a_402_that_is_not_tried_again(
    poor: Callable[[Decimal], Caller], upstream: Served, stack: RunningStack, books: Any
) -> None:
    caller = poor(Decimal("0.0005"))
    async with client_of(caller, max_retries=2) as client:
        asked = upstream.stats.requests
        made = await asyncio.gather(
            *(
                client.chat.completions.create(model="mock", messages=HI, max_tokens=32)
                for _ in range(20)
            ),
            return_exceptions=True,
        )
    good = [each for each in made if not isinstance(each, BaseException)]
    refused = [each for each in made if isinstance(each, openai.APIStatusError)]
    assert len(good) + len(refused) == 20
    assert upstream.stats.requests - asked == len(good)
    # At least as many as fit at their worst, at most as many as fit at their price.
    assert 2 <= len(good) <= 7
    for error in refused:
        assert error.status_code == 402
        assert error.response.headers["x-should-retry"] == "false"
        assert error.code == "insufficient_quota"
        assert error.response.json()["error"]["scope"] == "key"
    rows = books.rows(
        "select * from refused_calls where organisation_id = %s", caller.organisation_id
    )
    assert len(rows) == len(refused)
    db = await Database.open(stack.settings.database_url.get_secret_value(), name="tests")
    entries = await audit.read(db, caller.organisation_id)
    assert [entry.action for entry in entries] == ["call.refused"] * len(refused)
    assert await audit.verify(db, caller.organisation_id) is None
    await db.close()
    books.assert_nothing_held(caller.organisation_id)
    await caller.http.aclose()


async def test_what_its_caller_says_keeps_no_answer_from_being_delivered(
    caller: Caller, sdk: openai.AsyncOpenAI, upstream: Served
) -> None:
    rule = {"scope": "user", "subject": "*", "cap_usd": "0", "hard": False}
    assert (await caller.http.post("/v1/budgets", json=rule)).status_code == 200
    asked = upstream.stats.requests
    for user in ("a|€", "a|\r\nx: y"):
        raw = await sdk.chat.completions.with_raw_response.create(
            model="mock", messages=HI, user=user
        )
        assert raw.headers["x-overline-budget-warning"].startswith("user;period=2")
    assert upstream.stats.requests == asked + 2


async def test_an_equal_call_is_answered_at_the_edge_for_nothing(
    caller: Caller, sdk: openai.AsyncOpenAI, upstream: Served, books: Any
) -> None:
    asked = upstream.stats.requests
    answers = []
    for _ in range(2):
        raw = await sdk.chat.completions.with_raw_response.create(
            model="mock", messages=HI, temperature=0
        )
        answers.append((raw.headers["x-overline-cache"], raw.parse()))
    (first, one), (second, two) = answers
    assert (first, second) == ("miss", "hit")
    assert one.choices == two.choices
    assert one.usage == two.usage
    assert one.id != two.id
    text = "".join(
        [
            chunk.choices[0].delta.content or ""
            async for chunk in await sdk.chat.completions.create(
                model="mock", messages=HI, temperature=0, stream=True
            )
        ]
    )
    assert text == one.choices[0].message.content
    assert upstream.stats.requests == asked + 1
    rows = await settled(books, caller, 3)
    assert [row["outcome"] for row in rows] == ["succeeded", "cached", "cached"]
    assert [row["billed_usd"] > 0 for row in rows] == [True, False, False]
    for fields in ({"temperature": 1}, {"extra_headers": {"x-overline-cache": "off"}}):
        raw = await sdk.chat.completions.with_raw_response.create(
            **{"model": "mock", "messages": HI, "temperature": 0} | fields  # type: ignore[arg-type]
        )
        assert raw.headers["x-overline-cache"] == "miss"


async def test_a_client_that_leaves_pays_for_what_was_made(
    caller: Caller, sdk: openai.AsyncOpenAI, upstream: Served, books: Any
) -> None:
    stream = await sdk.chat.completions.create(model="mock-drip", messages=HI, stream=True)
    seen = 0
    async for _ in stream:
        seen += 1
        if seen == 6:
            break
    await stream.close()
    (row,) = await settled(books, caller, 1)
    assert row["outcome"] == "cancelled"
    assert 4 <= row["output_tokens"] < 32
    assert (
        row["billed_usd"]
        == Decimal(row["uncached_input_tokens"] + 2 * row["output_tokens"]) / 1_000_000
    )
    books.assert_nothing_held(caller.organisation_id)
    assert (await caller.task(str(row["task_id"])))["status"] == "cancelled"


async def test_a_client_that_leaves_a_model_of_ours_pays_what_the_engine_counted(
    caller: Caller, sdk: openai.AsyncOpenAI, books: Any
) -> None:
    stream = await sdk.chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": say(words(80), pace_ms=20)}],
        stream=True,
    )
    seen = 0
    async for _ in stream:
        seen += 1
        if seen == 12:
            break
    await stream.close()
    rows = await settled(books, caller, 1)
    assert rows[0]["outcome"] == "cancelled"
    await books.assert_attempts_equal(rows)
    books.assert_nothing_held(caller.organisation_id)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_cancelled_over_rest_is_billed_and_its_client_told(
    stream: bool, caller: Caller, books: Any
) -> None:
    asked: Any = {
        "model": "scripted",
        "messages": [{"role": "user", "content": say(words(80), pace_ms=20)}],
    }
    # As its users have it: it tries again what may be tried again.
    async with client_of(caller, max_retries=2) as client:
        calling = asyncio.ensure_future(_read(client, asked, stream=stream))
        (begun,) = await _begun(books, caller)
        await asyncio.sleep(0.3)
        assert (await caller.cancel(str(begun["task_id"])))["requested"] is True
        with pytest.raises(openai.APIError) as told:
            await calling
    assert told.value.code == "request_cancelled"
    if not stream:
        assert isinstance(told.value, openai.ConflictError)
        assert told.value.response.headers["x-should-retry"] == "false"
    rows = await settled(books, caller, 1)
    assert rows[0]["outcome"] == "cancelled"
    assert rows[0]["billed_usd"] > 0
    await books.assert_attempts_equal(rows)
    task = await caller.task(str(begun["task_id"]))
    assert (task["kind"], task["status"]) == ("call", "cancelled")
    own_id = f"chatcmpl-{str(begun['task_id']).replace('-', '')}"
    read = await caller.http.get(f"/v1/chat/completions/{own_id}")
    assert (read.status_code, read.json()["error"]["code"]) == (409, "call_cancelled")


async def _read(client: openai.AsyncOpenAI, asked: Any, *, stream: bool) -> None:
    answer = await client.chat.completions.create(**asked, stream=stream)
    if stream:
        async for _ in answer:
            pass


async def _begun(books: Any, caller: Caller) -> list[dict[str, Any]]:
    """Wait until a call of the caller's is made."""
    for _ in range(200):
        rows: list[dict[str, Any]] = books.rows(
            "select task_id from tasks where organisation_id = %s and status = 'running'",
            caller.organisation_id,
        )
        if rows:
            break
        await asyncio.sleep(0.02)
    return rows


async def test_a_repetition_of_what_has_no_whole_answer_is_made_anew(
    caller: Caller, books: Any, upstream: Served
) -> None:
    key = {"Idempotency-Key": "again"}
    asked: Any = {
        "model": "scripted",
        "messages": [{"role": "user", "content": say(words(40), pace_ms=20)}],
        "extra_headers": key,
    }
    async with client_of(caller) as client:
        # The client gave up, so its call was cut off; half of an answer is none to give again.
        with pytest.raises(openai.APITimeoutError):
            await client.with_options(timeout=0.5).chat.completions.create(**asked)
        whole = await client.chat.completions.create(**asked)
        assert whole.choices[0].message.content == words(40)
        again = await client.chat.completions.create(**asked)
        assert (again.id, again.choices) == (whole.id, whole.choices)
        rows = await settled(books, caller, 2)
        assert [row["outcome"] for row in rows] == ["cancelled", "succeeded"]

        # What failed says so as often as it fails, in the same words, and not when it does not.
        broken: Any = {"model": "mock-503", "messages": HI, "extra_headers": {**key}}
        broken["extra_headers"]["Idempotency-Key"] = "broken"
        before = upstream.stats.requests
        for _ in range(2):
            with pytest.raises(openai.InternalServerError) as told:
                await client.chat.completions.create(**broken)
            assert told.value.status_code == 503
        assert upstream.stats.requests == before + 2
        with pytest.raises(openai.UnprocessableEntityError):
            await client.chat.completions.create(**broken | {"model": "mock"})
    books.assert_nothing_held(caller.organisation_id)


async def test_a_call_that_is_to_be_finished_is_finished(
    caller: Caller, sdk: openai.AsyncOpenAI, books: Any
) -> None:
    stream = await sdk.chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": say(words(10), pace_ms=10)}],
        stream=True,
        extra_headers={"x-overline-on-disconnect": "finish"},
    )
    own_id = ""
    async for chunk in stream:
        own_id = chunk.id
        break
    await stream.close()
    await settled(books, caller, 1)
    kept = await sdk.chat.completions.retrieve(own_id)
    assert kept.choices[0].message.content == words(10)


async def test_a_key_repeats_its_answer_whole_or_streamed(
    caller: Caller, sdk: openai.AsyncOpenAI, upstream: Served, books: Any
) -> None:
    asked = upstream.stats.requests
    key = {"Idempotency-Key": "once"}
    first = await sdk.chat.completions.create(model="mock", messages=HI, extra_headers=key)
    raw = await sdk.chat.completions.with_raw_response.create(
        model="mock", messages=HI, extra_headers=key
    )
    assert raw.parse() == first
    assert raw.headers["idempotency-replayed"] == "true"
    chunks = [
        chunk
        async for chunk in await sdk.chat.completions.create(
            model="mock", messages=HI, stream=True, extra_headers=key
        )
    ]
    assert {chunk.id for chunk in chunks} == {first.id}
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert said == first.choices[0].message.content
    with pytest.raises(openai.UnprocessableEntityError) as other:
        await sdk.chat.completions.create(
            model="mock", messages=[{"role": "user", "content": "else"}], extra_headers=key
        )
    assert other.value.code == "idempotency_key_reused"
    assert upstream.stats.requests == asked + 1
    await settled(books, caller, 1)


async def test_a_repetition_waits_for_the_one_in_flight(
    caller: Caller, sdk: openai.AsyncOpenAI, upstream: Served
) -> None:
    asked = upstream.stats.requests
    made = await asyncio.gather(
        *(
            sdk.chat.completions.create(
                model="mock-drip", messages=HI, extra_headers={"Idempotency-Key": "twice"}
            )
            for _ in range(4)
        )
    )
    assert len({answer.id for answer in made}) == 1
    assert upstream.stats.requests == asked + 1
