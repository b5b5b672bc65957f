"""An upstream that answers at once, and a bare pass-through to it: what a gateway is measured by.

    uvicorn tests.benchmarks.gateway_upstream:upstream    answers: whole, or as 32 tokens
    uvicorn tests.benchmarks.gateway_upstream:passed      looks up the key, reads the JSON

Raw ASGI with answers written beforehand, so that they cost little beside what is measured.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import aiohttp
import msgspec

TOKENS = 32
USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": TOKENS,
    "total_tokens": 10 + TOKENS,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
KEY = "sk-bench-master"
_JSON = [(b"content-type", b"application/json")]
_SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]
_HEAD = {"id": "chatcmpl-bench", "created": 1, "model": "mock", "system_fingerprint": "fp_bench"}


def _event(choices: list[Any], **more: Any) -> bytes:
    document = {**_HEAD, "object": "chat.completion.chunk", "choices": choices, **more}
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


def _delta(delta: dict[str, Any], finish: str | None = None) -> list[Any]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]


_EVENTS = [
    _event(_delta({"role": "assistant", "content": ""}), usage=None),
    *[_event(_delta({"content": "tok "}), usage=None) for _ in range(TOKENS)],
    _event(_delta({}, "stop"), usage=None),
    _event([], usage=USAGE),
    b"data: [DONE]\n\n",
]
_WHOLE = msgspec.json.encode(
    {
        **_HEAD,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "tok " * TOKENS, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }
)


async def _body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def upstream(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    asked = msgspec.json.decode(await _body(receive) or b"{}")
    if not asked.get("stream"):
        await send({"type": "http.response.start", "status": 200, "headers": _JSON})
        await send({"type": "http.response.body", "body": _WHOLE})
        return
    await send({"type": "http.response.start", "status": 200, "headers": _SSE})
    for event in _EVENTS[:-1]:
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": _EVENTS[-1]})


_KEYS = {hashlib.sha256(KEY.encode()).hexdigest()}
_session: list[aiohttp.ClientSession] = []


async def passed(scope: Any, receive: Any, send: Any) -> None:
    """Pass a request on, and its answer back: nothing is kept."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    if not _session:
        _session.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    headers = dict(scope["headers"])
    known = hashlib.sha256(headers.get(b"authorization", b"")[7:]).hexdigest() in _KEYS
    body = await _body(receive)
    if not known:
        await send({"type": "http.response.start", "status": 401, "headers": _JSON})
        await send({"type": "http.response.body", "body": b"{}"})
        return
    json.loads(body)
    async with _session[0].post(
        os.environ["BENCH_UPSTREAM"] + "/chat/completions",
        data=body,
        headers={"content-type": "application/json"},
    ) as answer:
        kind = [(b"content-type", answer.headers["content-type"].encode())]
        await send({"type": "http.response.start", "status": answer.status, "headers": kind})
        async for piece in answer.content.iter_any():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
