"""The client of an upstream, against a scripted one on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
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
from inference.upstream.client import UpstreamClient, Upstreams
from inference.upstream.events import Events
from inference.upstream.failures import failure_in_stream, failure_of_status, retry_after
from inference.upstream.keys import UpstreamKeys
from inference.upstream.messages import ChatFinal, ChatRequest, Delta, Upstream
from inference.upstream.wire import read_event, usage_of
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


@contextlib.asynccontextmanager
async def saying(*events: Any, kind: str = "text/event-stream") -> AsyncIterator[UpstreamClient]:
    """Give the client of an upstream that says just this, all at once, whatever it is asked."""
    told = [msgspec.json.encode(event) for event in events]
    if kind == "text/event-stream":
        told = [b"data: " + event + b"\n\n" for event in told]

    async def at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + b"".join(told))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(at_once, "127.0.0.1", 0)
    pool = Upstreams()
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield pool.at(Upstream("odd", url))
    finally:
        await pool.close()
        server.close()


def piece(text: str | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Return an event of a stream."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return {"id": "a", "choices": [choice], **more}


async def test_what_was_said_in_the_same_bytes_as_a_failure_was_said() -> None:
    deltas: list[Delta] = []
    broke = {"error": {"message": "out of order", "code": "500"}}
    async with saying(piece("Nearly"), broke) as client:

        async def read() -> None:
            async with client.stream(ChatRequest("m", ASKED, {})) as stream:
                async for chunk in stream:
                    deltas.extend(chunk.deltas)

        with pytest.raises(EngineFailed) as failed:
            await read()
    assert text_of(deltas) == "Nearly"
    assert failed.value.sent


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        # Thoughts are among what was written, as at OpenAI, or beside it.
        ({"completion_tokens": 103, "total_tokens": 135, "reasoning_tokens": 94}, (103, 94)),
        ({"completion_tokens": 9, "total_tokens": 135, "reasoning_tokens": 94}, (103, 94)),
        ({"completion_tokens": 9, "total_tokens": 135}, (103, 0)),
        ({"total_tokens": 135}, (103, 0)),
        ({"completion_tokens": 9, "reasoning_tokens": 94}, (94, 94)),
        # A sum of less than its parts changes none of them, nor is more billed than it says.
        ({"completion_tokens": 9, "total_tokens": 20}, (9, 0)),
        ({"completion_tokens": 9, "total_tokens": 41, "reasoning_tokens": 94}, (9, 9)),
        ({}, (0, 0)),
    ],
)
def test_what_was_written_is_what_the_sum_says(
    told: dict[str, int], expected: tuple[int, int]
) -> None:
    thoughts = {"completion_tokens_details": {"reasoning_tokens": told.pop("reasoning_tokens", 0)}}
    event = {"usage": {"prompt_tokens": 32, **told, **thoughts}}
    usage = usage_of(read_event(msgspec.json.encode(event)).usage)
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens) == (32, *expected)


def so_far(count: int | None) -> dict[str, Any]:
    """Return a usage of a prompt of seven tokens."""
    return {"usage": {"prompt_tokens": 7} | ({} if count is None else {"completion_tokens": count})}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        # Told once, before anything was written.
        ([piece("", **so_far(0)), *[piece("tok ")] * 40], (40, "estimate")),
        ([piece("", **so_far(90)), *[piece("tok ")] * 40], (90, "upstream")),
        # Told with every piece: a number that stays the same counts nothing.
        ([piece("tok ", **so_far(1))] * 40, (40, "estimate")),
        # A running count is the upstream's own; ours is of four signs a token.
        ([piece("tok " * 4, **so_far(n)) for n in range(1, 41)], (40, "upstream")),
        # Nothing is told of what was written.
        ([*[piece("tok ")] * 40, {"choices": [], **so_far(None)}], (40, "estimate")),
        ([*[piece("tok ")] * 40, {"choices": [], **so_far(33)}], (33, "upstream")),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
async def test_what_is_written_after_the_count_counts(
    events: list[dict[str, Any]], expected: tuple[int, str], *, finished: bool
) -> None:
    events = list(events)
    if finished:
        # The count of the whole comes after the end of the text.
        after = [] if events[-1]["choices"] else [events.pop()]
        events += [piece(None, "stop"), *after]
    async with (
        saying(*events) as client,
        client.stream(ChatRequest("m", ASKED, {})) as stream,
    ):
        with contextlib.suppress(EngineUnavailable):
            async for _ in stream:
                pass
        usage = stream.usage
    assert usage.prompt_tokens == 7
    assert (usage.completion_tokens, usage.source) == expected


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


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, (5, "estimate")),
        ({"usage": {}}, (5, "estimate")),
        ({"usage": {"total_tokens": 3}}, (3, "upstream")),
        ({"usage": {"prompt_tokens": 3, "total_tokens": 3}}, (3, "upstream")),
        # It is told that it cost nothing.
        ({"usage": {"prompt_tokens": 0, "total_tokens": 0}}, (0, "upstream")),
    ],
)
async def test_vectors_without_a_count_have_a_likely_one(
    told: dict[str, Any], expected: tuple[int, str]
) -> None:
    async with saying({"data": [], **told}, kind="application/json") as client:
        # Three tokens and a sign of another script; one token.
        answer = await client.embeddings({"model": "e", "input": ["a b c d e f é", "a"]})
    assert (answer.usage.prompt_tokens, answer.usage.source) == expected
    assert answer.usage.completion_tokens == 0


@pytest.mark.parametrize(
    ("status", "body", "error", "code"),
    [
        (402, b"", EngineDenied, "unpaid"),
        (429, b'{"error": {"code": "insufficient_quota"}}', EngineDenied, "unpaid"),
        (429, b"slow down", EngineBusy, "busy"),
        (422, b'{"message": "no", "object": "error", "code": 422}', RequestRefused, "bad_request"),
        (
            400,
            b'{"error": "This model\'s maximum context length is 8 tokens"}',
            RequestRefused,
            "prompt_too_long",
        ),
        (408, b"", EngineUnavailable, "unavailable"),
        (502, b"<html>", EngineUnavailable, "unavailable"),
        (529, b"[" * 100_000, EngineUnavailable, "unavailable"),
        (501, b"null", EngineFailed, "engine_failed"),
    ],
)
def test_a_status_and_a_body_make_an_error(
    status: int, body: bytes, error: type[EngineError], code: str
) -> None:
    made = failure_of_status("u", status, {}, body, None)
    assert (type(made), made.code) == (error, code)
    assert made.told is not None
    assert made.told.status == status


def test_an_error_within_a_stream_has_the_status_it_names() -> None:
    busy = failure_in_stream("u", {"message": "m", "code": "429"}, None)
    assert (type(busy), busy.told and busy.told.status) == (EngineBusy, 429)
    refused = failure_in_stream("u", {"message": "m", "type": "invalid_request_error"}, None)
    assert isinstance(refused, RequestRefused)
    assert isinstance(failure_in_stream("u", "words", None), EngineFailed)


def test_retry_after_in_all_its_forms() -> None:
    assert retry_after({"retry-after": "7"}) == 7
    assert retry_after({"retry-after-ms": "250", "retry-after": "7"}) == 0.25
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(minutes=1), usegmt=True)
    assert 55 < (retry_after({"retry-after": in_a_minute}) or 0) <= 60
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    for nothing in ({}, {"retry-after": "None"}, {"retry-after": "-3"}, {"retry-after": "inf"}):
        assert retry_after(nothing) is None
    assert retry_after({"retry-after": "1e9"}) == 3600


def test_events_come_out_whole_however_the_bytes_come() -> None:
    sent = b': hello\r\n\r\ndata: {"a":\r\ndata: 1}\r\n\r\nevent: x\ndata:2\n\ndata: 3\n'
    for size in (1, 2, 3, 7, len(sent)):
        events = Events()
        found = [
            data
            for start in range(0, len(sent), size)
            for data in events.feed(sent[start : start + size])
        ]
        assert [*found, *events.end()] == [b'{"a":\n1}', b"2", b"3"]
    with pytest.raises(ValueError, match="longer"):
        Events().feed(b"x" * 16_000_001)


def test_keys_are_read_again_when_their_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys = UpstreamKeys(file)
    assert keys.of(None) is None
    with pytest.raises(EngineDenied, match="cannot be read"):
        keys.of("a")
    file.write_text('{"a": "sk-1"}')
    assert keys.of("a") == "sk-1"
    replaced = tmp_path / "new"
    replaced.write_text('{"a": "sk-2"}')
    replaced.replace(file)
    assert keys.of("a") == "sk-2"
    with pytest.raises(EngineDenied, match="no key 'b'"):
        keys.of("b")
    file.write_text('{"a": ["sk-3"]}')
    with pytest.raises(EngineDenied) as refused:
        keys.of("a")
    assert "sk-3" not in "".join(traceback.format_exception(refused.value))
    with pytest.raises(EngineDenied):
        UpstreamKeys(None).of("a")
