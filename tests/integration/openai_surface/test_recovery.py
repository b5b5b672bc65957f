"""The process that makes a call dies in the middle: its workflow ends it, and it is billed once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx2
import openai
import pytest

from inference.client import TritonClient
from tests.integration.openai_surface.conftest import client_of
from tests.integration.openai_surface.written import assert_nowhere
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, say, words
from tests.integration.tasks.histories import assert_replays
from tests.upstream import registered, served

LONG = words(60)


async def interrupted(
    stack: RunningStack, client: openai.AsyncOpenAI, *, after: int, **asked: Any
) -> tuple[str, str]:
    """Begin a stream, kill the API in the middle of it; returns the answer's id and the text."""
    said = ""
    own_id = ""
    try:
        async for chunk in await client.chat.completions.create(stream=True, **asked):
            own_id = chunk.id
            said += chunk.choices[0].delta.content or ""
            if len(said) > after:
                stack.kill("api")
                after = 10**9
    except (openai.APIError, httpx2.HTTPError):
        pass
    return own_id, said


async def until_back(stack: RunningStack, client: openai.AsyncOpenAI, own_id: str) -> Any:
    """Read an answer again, for as long as it takes to be there."""
    for _ in range(400):
        try:
            return await client.chat.completions.retrieve(own_id)
        except (openai.APIConnectionError, openai.ConflictError, openai.InternalServerError):
            await asyncio.sleep(0.1)
    raise AssertionError("no answer")


async def assert_the_policy_holds_for_who_goes_on(
    stack: RunningStack, caller: Caller, client: openai.AsyncOpenAI, books: Books
) -> str:
    """What was taken out, on the way in and on the way out, is so after the process died."""
    rules: Any = [
        {"id": "mail", "kind": "pii", "types": ["EMAIL_ADDRESS"], "action": "redact"},
        {"id": "blue", "kind": "deny_list", "words": ["Bluebird"], "on": ["output"],
         "action": "redact"},
    ]  # fmt: skip
    assert (await caller.http.put("/v1/policy", json={"rules": rules})).status_code == 200
    mail = f"canary{uuid4().hex}@example.com"
    text = f"To {mail}: a Bluebird. {words(50)} {mail} and a Bluebird {words(9)}"
    asked: Any = {
        "model": "scripted",
        "messages": [{"role": "user", "content": say(text, pace_ms=15)}],
        "extra_headers": {"Idempotency-Key": "screened"},
    }
    # Nobody can ask a judge any more for an answer whose process died: it is none.
    judged = Caller.made(stack.admin_url, caller.base_url)
    judge: Any = {"id": "judge", "kind": "moderation", "model": "scripted", "on": ["output"],
                  "action": "block"}  # fmt: skip
    assert (await judged.http.put("/v1/policy", json={"rules": [judge]})).status_code == 200
    unjudged = asyncio.create_task(
        judged.http.post(
            "/v1/chat/completions",
            json={
                "model": "scripted",
                "messages": [{"role": "user", "content": say(LONG, pace_ms=20)}],
            },
            headers={"Idempotency-Key": "judged"},
        )
    )
    own_id, said = await interrupted(stack, client, after=80, **asked)
    assert isinstance((await asyncio.gather(unjudged, return_exceptions=True))[0], httpx2.HTTPError)
    expected = text.replace("Bluebird", "[DENIED]")
    assert said == expected[: len(said)]
    assert 80 < len(said) < len(expected)
    kept = await until_back(stack, client, own_id)
    assert kept.choices[0].message.content == expected
    repeated = await client.chat.completions.create(**asked)
    assert (repeated.id, repeated.choices) == (own_id, kept.choices)
    await assert_nowhere(stack, mail, control=own_id.removeprefix("chatcmpl-")[:8])
    await assert_it_has_no_answer(judged, books)
    assert (await caller.http.delete("/v1/policy")).status_code == 200
    return own_id


async def assert_it_has_no_answer(caller: Caller, books: Books) -> None:
    """A caller's only call ended as one does whose policy cannot be applied."""
    for _ in range(400):
        (row,) = books.rows(
            "select task_id, status, error from tasks where organisation_id = %s",
            caller.organisation_id,
        )
        if row["status"] not in ("accepted", "running"):
            break
        await asyncio.sleep(0.1)
    assert (row["status"], row["error"]["code"]) == ("failed", "OVL-4008")
    kept = await caller.http.get(f"/v1/chat/completions/chatcmpl-{row['task_id'].hex}")
    assert (kept.status_code, kept.json()["error"]["code"]) == (409, "call_failed")
    assert [each["outcome"] for each in books.ledger(row["task_id"].hex)] == ["lost", "failed"]
    books.assert_nothing_held(caller.organisation_id)
    await caller.http.aclose()


async def assert_an_outage_is_a_503(stack: RunningStack, client: openai.AsyncOpenAI) -> None:
    """While Postgres is away nobody is told that their key is bad; it recovers by itself."""
    stack.kill("postgres")
    refused: list[openai.APIStatusError] = []
    for _ in range(600):
        try:
            await client.chat.completions.create(
                model="mock", messages=[{"role": "user", "content": "hi"}]
            )
            break
        except openai.APIStatusError as error:
            refused.append(error)
        await asyncio.sleep(0.1)
    else:
        raise AssertionError("it did not recover")
    assert {(error.status_code, error.code) for error in refused} <= {(503, "database_unavailable")}
    assert all(error.response.headers["retry-after"] for error in refused)


@pytest.mark.timeout(300)
async def test_calls_outlive_the_process_that_made_them(
    own_stack: Callable[..., RunningStack], tmp_path: Any
) -> None:
    with served() as upstream:
        stack = own_stack(**registered(tmp_path, upstream.url))
        stack.up()
        caller = Caller.made(stack.admin_url, stack.state().urls["api"])
        async with (
            client_of(caller) as client,
            TritonClient(stack.settings.triton_urls[0]) as engine,
        ):
            books = Books(stack.admin_url, engine)
            # One call at a time: a process that dies takes nobody's slot with it.
            alone = {"scope": "key", "scope_id": str(caller.key_id), "concurrent_calls": 1}
            assert (await caller.http.post("/v1/limits", json=alone)).status_code == 200
            ours: Any = {
                "model": "scripted",
                "messages": [{"role": "user", "content": say(LONG, pace_ms=15)}],
                "extra_headers": {"Idempotency-Key": "ours"},
            }
            own_id, said = await interrupted(stack, client, after=80, **ours)
            assert 80 < len(said) < len(LONG)
            kept = await until_back(stack, client, own_id)
            assert kept.choices[0].message.content == LONG
            repeated = await client.chat.completions.create(**ours)
            assert (repeated.id, repeated.choices) == (own_id, kept.choices)
            task_id = own_id.removeprefix("chatcmpl-")
            rows = books.ledger(task_id)
            assert [row["outcome"] for row in rows] == ["lost", "succeeded"]
            await books.assert_attempts_equal(rows)
            books.assert_no_call_ran_twice(rows)
            assert kept.usage.completion_tokens == len(LONG) + 1

            # An upstream cannot go on from the middle: it is asked again where somebody will ask.
            asked: Any = {
                "model": "mock-drip",
                "messages": [{"role": "user", "content": "hi"}],
                "extra_headers": {"Idempotency-Key": "theirs"},
            }
            other_id, said = await interrupted(stack, client, after=20, **asked)
            assert 0 < len(said) < 128
            kept = await until_back(stack, client, other_id)
            assert kept.choices[0].message.content == "tok " * 32
            rows = books.ledger(other_id.removeprefix("chatcmpl-"))
            assert rows[-1]["outcome"] == "succeeded"
            assert [row["billed_usd"] > 0 for row in rows] == [False] * (len(rows) - 1) + [True]

            # Without a key nobody could ask for it: what was sent is accounted for, and it is over.
            asked.pop("extra_headers")
            lost_id, _ = await interrupted(stack, client, after=20, **asked)
            for _ in range(400):
                task = await caller.task(lost_id.removeprefix("chatcmpl-"))
                if task["finished_at"] is not None:
                    break
                await asyncio.sleep(0.1)
            assert task["status"] == "failed"
            (row,) = books.ledger(lost_id.removeprefix("chatcmpl-"))
            assert (row["billed_usd"], row["usage_source"]) == (0, "estimate")
            assert row["output_tokens"] > 0
            books.assert_nothing_held(caller.organisation_id)
            (limit,) = (await caller.http.get("/v1/limits")).json()["limits"]
            assert limit["open_calls"] == 0
            assert (await caller.http.delete(f"/v1/limits/{limit['id']}")).status_code == 200
            await assert_an_outage_is_a_503(stack, client)
            books.assert_nothing_held(caller.organisation_id)
            screened_id = await assert_the_policy_holds_for_who_goes_on(
                stack, caller, client, books
            )
            ids = [own_id, other_id, screened_id]
            await assert_replays(
                stack,
                [f"task-{(await caller.task(i.removeprefix('chatcmpl-')))['id']}" for i in ids],
            )
        await caller.http.aclose()
