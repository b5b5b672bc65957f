"""The client of an upstream, against a scripted one on a real socket."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from inference.errors import (
    EngineBusy,
    EngineDenied,
    EngineError,
    EngineFailed,
    EngineUnavailable,
    RequestRefused,
)
from inference.upstream.client import Upstream, UpstreamClient, Upstreams
from inference.upstream.messages import ChatFinal, ChatRequest, Delta
from tests.upstream import Served, served

KEY = "sk-canary-0123456789abcdef"
ASKED = [{"role": "user", "content": "one two three"}]


@pytest.fixture(scope="module")
def upstream() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
async def client(upstream: Served) -> AsyncIterator[UpstreamClient]:
    pool = Upstreams()
    yield pool.at(Upstream("scripted", upstream.url, KEY))
    await pool.close()


async def ask(
    client: UpstreamClient, model: str, messages: Any = ASKED, **parameters: Any
) -> tuple[list[Delta], ChatFinal]:
    deltas: list[Delta] = []
    request = ChatRequest(model, messages, parameters, idle_s=1.0, first_byte_s=3.0)
    async with client.stream(request) as stream:
        async for chunk in stream:
            deltas += chunk.deltas
            if chunk.final is not None:
                return deltas, chunk.final
    raise AssertionError("no final chunk")


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


async def test_an_answer_comes_with_its_text_usage_and_names(client: UpstreamClient) -> None:
    deltas, final = await ask(client, "m")
    assert text_of(deltas) == "tok " * 32
    assert [d.finish_reason for d in deltas][-1] == final.finish_reason == "stop"
    assert (final.usage.prompt_tokens, final.usage.completion_tokens) == (3, 32)
    assert final.usage.source == "upstream"
    assert (final.request_id, final.model) == ("req_scripted", "m")
    assert 0 < final.timings.first_token_ms <= final.timings.total_ms


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("m-odd", (3, 0, 32, 0, "upstream")),
        ("m-finish", (3, 0, 32, 0, "upstream")),
        ("m-cached", (3, 3, 32, 0, "upstream")),
        ("m-reasoning", (3, 0, 52, 20, "upstream")),
        ("m-whole", (3, 0, 32, 0, "upstream")),
        ("m-nousage", (8, 0, 32, 0, "estimate")),
    ],
)
async def test_usage_counts_wherever_it_stands(
    client: UpstreamClient, model: str, expected: tuple[object, ...]
) -> None:
    deltas, final = await ask(client, model)
    usage = final.usage
    assert text_of(deltas) == "tok " * 32
    assert expected == (
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        usage.reasoning_tokens,
        usage.source,
    )


@pytest.mark.parametrize(
    ("model", "error", "code", "status"),
    [
        ("m-400", RequestRefused, "bad_request", 400),
        ("m-401", EngineDenied, "denied", 401),
        ("m-403", EngineDenied, "denied", 403),
        ("m-404", EngineDenied, "unknown_model", 404),
        ("m-413", RequestRefused, "request_too_large", 413),
        ("m-429", EngineBusy, "busy", 429),
        ("m-500", EngineFailed, "engine_failed", 500),
        ("m-503", EngineUnavailable, "unavailable", 503),
        ("m-toolong", RequestRefused, "prompt_too_long", 400),
        ("m-inband", EngineFailed, "engine_failed", 500),
        ("m-garbage", EngineFailed, "bad_answer", None),
        ("m-moved", EngineDenied, "moved", 307),
        ("m-mute", EngineUnavailable, "idle_timeout", None),
    ],
)
async def test_a_failure_before_the_first_byte_is_typed(
    client: UpstreamClient, model: str, error: type[EngineError], code: str, status: int | None
) -> None:
    with pytest.raises(error) as failed:
        await ask(client, model)
    told = failed.value.told
    assert (failed.value.code, told.status if told else None) == (code, status)
    assert not failed.value.sent
    after = {429: 7.0, 503: 7.0}.get(status or 0)
    assert (told.retry_after_s if told else None) == after


@pytest.mark.parametrize(
    ("model", "error", "code"),
    [
        ("m-cut", EngineUnavailable, "connection_lost"),
        ("m-stall", EngineUnavailable, "idle_timeout"),
        ("m-late", EngineFailed, "engine_failed"),
    ],
)
async def test_a_failure_after_the_first_byte_says_what_was_sent(
    client: UpstreamClient, upstream: Served, model: str, error: type[EngineError], code: str
) -> None:
    asked = [{"role": "user", "content": '[[say text="tok " tokens=128 pace_ms=2]]'}]
    with pytest.raises(error) as failed:
        await ask(client, model, asked)
    assert failed.value.code == code
    assert failed.value.sent
    usage = failed.value.usage
    assert usage is not None
    assert (usage.completion_tokens, usage.source) == (16, "estimate")


async def test_tool_calls_come_in_pieces_that_their_index_joins(client: UpstreamClient) -> None:
    deltas, final = await ask(client, "m-tools")
    calls: dict[int, list[str]] = {}
    for piece in (piece for delta in deltas for piece in delta.tool_calls):
        call = calls.setdefault(piece.index, ["", "", ""])
        call[0] += piece.id or ""
        call[1] += piece.name or ""
        call[2] += piece.arguments
    assert calls == {0: ["call_a", "f", '{"x":1}'], 1: ["call_b", "g", '{"y":2}']}
    assert final.finish_reason == "tool_calls"


async def test_the_request_goes_out_as_it_came(client: UpstreamClient, upstream: Served) -> None:
    turn = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function"}]}
    raw = msgspec.Raw(msgspec.json.encode([*ASKED, turn]))
    await ask(client, "m", raw, temperature=0.5, stream_options={"x": 1}, logit_bias={"5": -1})
    body = upstream.stats.last_body
    assert body["messages"] == [*ASKED, turn]
    assert body["stream_options"] == {"x": 1, "include_usage": True}
    assert (body["temperature"], body["logit_bias"], body["stream"]) == (0.5, {"5": -1}, True)
    assert upstream.stats.last_headers["authorization"] == f"Bearer {KEY}"


async def test_what_is_not_json_is_refused_here(client: UpstreamClient) -> None:
    for content in ("\ud800", object()):
        with pytest.raises(RequestRefused):
            await ask(client, "m", [{"role": "user", "content": content}])


async def test_a_finished_answer_leaves_its_connection(
    client: UpstreamClient, upstream: Served
) -> None:
    await ask(client, "m")
    before = upstream.stats.connections
    for _ in range(5):
        await ask(client, "m")
        await asyncio.sleep(0.01)
    assert upstream.stats.connections == before


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_leaving_closes_the_connection_at_once(
    client: UpstreamClient, upstream: Served, how: str
) -> None:
    gone = upstream.stats.client_gone
    request = ChatRequest("m-drip", ASKED)
    if how == "closed":
        async with client.stream(request) as stream:
            async for _ in stream:
                break
        assert stream.usage.source == "estimate"
    else:
        task = asyncio.create_task(ask(client, "m-drip"))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    until = time.monotonic() + 1
    while upstream.stats.client_gone == gone:
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("model", ["m-400", "m-401", "m-404", "m-429", "m-500", "m-cut", "m-mute"])
async def test_the_key_is_in_no_error_and_no_log(
    client: UpstreamClient, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(EngineError) as failed:
        await ask(client, model)
    error = failed.value
    shown = "".join(traceback.format_exception(error)) + repr(error.told) + repr(client.upstream)
    assert KEY not in shown + caplog.text
    if model == "m-400":
        assert error.told is not None
        assert "scripted 400; the key was Bearer [key]" in error.told.message


async def test_nobody_listens(client: UpstreamClient) -> None:
    pool = Upstreams()
    with pytest.raises(EngineUnavailable) as failed:
        await ask(pool.at(Upstream("gone", "http://127.0.0.1:9/v1", KEY)), "m")
    assert failed.value.code == "not_ready"
    await pool.close()


async def test_vectors(client: UpstreamClient) -> None:
    answer = await client.embeddings({"model": "e", "input": ["a", "b"]})
    assert len(msgspec.json.decode(answer.data)) == 2
    assert answer.usage.prompt_tokens == 5
