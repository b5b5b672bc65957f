"""A scripted upstream: OpenAI's chat completions with faults and words of the tests' choice.

    python -m tests.upstream --port 9101

The model's name ends in the fault, so that it passes through anything untouched:

    -401 -403 -404 -400 -413 -429 -500 -503   that status, 429 and 503 with Retry-After
    -toolong     400, `context_length_exceeded`
    -inband      200, then an event with an error, then [DONE]
    -late        half of the answer, then an event with an error
    -cut         half of the answer, then the connection is dropped
    -stall       half of the answer, then nothing
    -mute        nothing at all
    -slow        2 s before the first byte
    -drip        50 ms between tokens
    -odd         the usage stands in a chunk with choices [{"index": 0, "delta": {}}]
    -finish      the usage stands in the chunk that ends the answer
    -nousage     no usage
    -cached      6 tokens of the prompt were cached
    -reasoning   20 tokens more, of thoughts, which are not shown
    -tools       two parallel calls, in pieces
    -whole       answers with JSON although a stream was asked for
    -garbage     an event that is no JSON
    -moved       a redirection

The last user message may say what is answered: directives of `inference.engines.script`. `call`
directives are answered with tool calls, `die`, `freeze` and `fail` are cut, stall and an error in
the stream. A token is four bytes of text; a prompt has as many tokens as it has words.

GET /_stats tells what was counted, POST /_reset forgets it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from inference.engines.script import Script, read_script

TOKENS = 32
HEADERS_JSON = [(b"content-type", b"application/json"), (b"x-request-id", b"req_scripted")]
HEADERS_SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), HEADERS_JSON[1]]
PARALLEL = [("call_a", "f", '{"x":1}'), ("call_b", "g", '{"y":2}')]
_STATUSES = {
    "-400": (400, "invalid_request_error", "unsupported_value"),
    "-401": (401, "invalid_request_error", "invalid_api_key"),
    "-403": (403, "invalid_request_error", "forbidden"),
    "-404": (404, "invalid_request_error", "model_not_found"),
    "-413": (413, "invalid_request_error", "too_large"),
    "-429": (429, "requests", "rate_limit_exceeded"),
    "-500": (500, "server_error", None),
    "-503": (503, "server_error", "overloaded"),
    "-toolong": (400, "invalid_request_error", "context_length_exceeded"),
}


@dataclass
class Stats:
    """What was asked and what was sent; `open` is how many answers are being written."""

    requests: int = 0
    completed: int = 0
    client_gone: int = 0
    open: int = 0
    connections: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    by_model: dict[str, int] = field(default_factory=dict)
    last_body: Any = None
    last_headers: dict[str, str] = field(default_factory=dict)


class Gone(Exception):
    """Who asked has left."""


class ScriptedUpstream:
    """The ASGI application."""

    def __init__(self) -> None:
        self.stats = Stats()
        self._once: set[str] = set()
        self._peers: set[Any] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        path = scope["path"]
        if scope.get("client") not in self._peers:
            self._peers.add(scope.get("client"))
            self.stats.connections += 1
        body = await _body(receive)
        if path.endswith("/chat/completions"):
            await self._chat(json.loads(body), scope, receive, send)
        elif path.endswith("/embeddings"):
            asked = json.loads(body)
            texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
            data = [
                {"object": "embedding", "index": number, "embedding": [0.1] * 8}
                for number, _ in enumerate(texts)
            ]
            usage = {"prompt_tokens": 5, "total_tokens": 5}
            await _answer(send, 200, {"object": "list", "data": data, "usage": usage})
        elif path == "/_stats":
            await _answer(send, 200, self.stats.__dict__)
        elif path == "/_reset":
            self.stats, self._once = Stats(), set()
            await _answer(send, 200, {})
        else:
            await _answer(send, 404, _error("no such route", "invalid_request_error", None))

    async def _chat(self, asked: dict[str, Any], scope: Any, receive: Any, send: Any) -> None:
        model = str(asked.get("model"))
        stats = self.stats
        stats.requests += 1
        stats.by_model[model] = stats.by_model.get(model, 0) + 1
        stats.last_body = asked
        stats.last_headers = {k.decode("latin1"): v.decode("latin1") for k, v in scope["headers"]}
        fault = "-" + model.rpartition("-")[2] if "-" in model else ""
        if fault in _STATUSES:
            status, kind, code = _STATUSES[fault]
            said = f"scripted {status}; the key was {stats.last_headers.get('authorization')}"
            after = [(b"retry-after", b"7")] if status in (429, 503) else []
            await _answer(send, status, _error(said, kind, code), after)
            return
        if fault == "-moved":
            await _answer(send, 307, {}, [(b"location", b"http://127.0.0.1:1/v1")])
            return
        if fault == "-mute":
            while (await receive())["type"] != "http.disconnect":
                pass
            stats.client_gone += 1
            return
        if fault == "-slow":
            await asyncio.sleep(2)
        answer = Answer(asked, fault, f"chatcmpl-{stats.requests}", self._script(asked))
        stats.prompt_tokens += answer.prompt_tokens
        stats.cached_tokens += answer.cached_tokens
        stats.completion_tokens += answer.hidden_tokens
        if not asked.get("stream") or fault == "-whole":
            stats.completion_tokens += len(answer.pieces)
            stats.completed += 1
            await _answer(send, 200, answer.whole())
            return
        leaving = asyncio.ensure_future(receive())
        stats.open += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS_SSE})
            async for event, tokens in answer.events():
                if leaving.done():
                    raise Gone
                stats.completion_tokens += tokens
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
            stats.completed += 1
        except (Gone, _Stalled):
            if not leaving.done():
                await leaving
            stats.client_gone += 1
        finally:
            stats.open -= 1
            leaving.cancel()

    def _script(self, asked: dict[str, Any]) -> Script | None:
        prompt = "".join(
            f"<|im_start|>{m.get('role')}\n{m.get('content')}<|im_end|>\n"
            if m.get("role") != "tool"
            else f"<|im_start|>user\nResult of a tool: {m.get('content')}<|im_end|>"
            for m in asked.get("messages", [])
        )
        if "[[" not in prompt:
            return None
        choosing = bool(asked.get("tools")) and asked.get("tool_choice") != "none"
        script = read_script(prompt + "<|im_start|>assistant", None, "root" if choosing else None)
        if script.faulty and script.once:
            if script.once in self._once:
                return script.healthy()
            self._once.add(script.once)
        return script


class _Stalled(Exception):
    pass


class Answer:
    """One answer: its pieces, each a token, and how they are told."""

    def __init__(self, asked: dict[str, Any], fault: str, name: str, script: Script | None) -> None:
        self.asked = asked
        self.fault = fault
        self.name = name
        self.script = script
        words = " ".join(str(m.get("content")) for m in asked.get("messages", [])).split()
        self.prompt_tokens = len(words)
        self.cached_tokens = min(6, self.prompt_tokens) if fault == "-cached" else 0
        self.hidden_tokens = 20 if fault == "-reasoning" else 0
        choosing = bool(asked.get("tools")) and asked.get("tool_choice") != "none"
        self.calls: list[tuple[str, str, str]] = []
        if fault == "-tools":
            self.calls = PARALLEL
        elif choosing and script is not None:
            self.calls = _calls(json.loads(script.text))
        text = ""
        if not self.calls:
            text = script.output().decode() if script else "tok " * TOKENS
        most = int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 1_000_000)
        pieces = [text[n : n + 4] for n in range(0, len(text), 4)]
        self.pieces = pieces[:most]
        self.finish = "tool_calls" if self.calls else "length" if len(pieces) > most else "stop"

    @property
    def usage(self) -> dict[str, Any]:
        written = self.hidden_tokens + len(self.pieces) + 3 * len(self.calls)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self.prompt_tokens + written,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.hidden_tokens},
        }

    def whole(self) -> dict[str, Any]:
        """The answer in one."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.pieces)}
        if self.calls:
            message["content"] = None
            message["tool_calls"] = [
                {"id": i, "type": "function", "function": {"name": n, "arguments": a}}
                for i, n, a in self.calls
            ]
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        return {**self._head("chat.completion"), "choices": [choice], "usage": self.usage}

    async def events(self) -> AsyncIterator[tuple[bytes, int]]:
        """The answer in events, each with the tokens it brings."""
        if self.fault == "-inband":
            yield _event(_error("scripted in-band failure", "server_error", "500")), 0
            return
        if self.fault == "-garbage":
            yield b'data: {"choices": [{"delta"\n\n', 0
            return
        told = (self.asked.get("stream_options") or {}).get("include_usage")
        told = told and self.fault != "-nousage"
        yield self._chunk({"role": "assistant", "content": None if self.calls else ""}), 0
        async for piece in self._said():
            yield piece
        last = {"usage": self.usage} if told and self.fault == "-finish" else {}
        yield self._chunk({}, self.finish, **last), 0
        if told and not last:
            odd = [{"index": 0, "delta": {}}] if self.fault == "-odd" else []
            yield _event({**self._head(), "choices": odd, "usage": self.usage}), 0

    async def _said(self) -> AsyncIterator[tuple[bytes, int]]:
        script = self.script or Script()
        pace = 0.05 if self.fault == "-drip" else script.pace_ms / 1000
        await asyncio.sleep(script.first_ms / 1000)
        for place, (name, function, arguments) in enumerate(self.calls):
            head = {"name": function, "arguments": ""}
            first = {"index": place, "id": name, "type": "function", "function": head}
            yield self._chunk({"tool_calls": [first]}), 1
            for part in (arguments[:3], arguments[3:]):
                await asyncio.sleep(pace)
                piece = {"index": place, "function": {"arguments": part}}
                yield self._chunk({"tool_calls": [piece]}), 1
        for number, piece in enumerate(self.pieces):
            await self._fault_at(number, script)
            if self.fault == "-late" and number == len(self.pieces) // 2:
                yield _event(_error("scripted late failure", "server_error", None)), 0
                raise RuntimeError
            if script.fail is not None and number == script.fail:
                yield _event(_error("scripted failure", "server_error", None)), 0
                raise RuntimeError
            yield self._chunk({"content": piece}), 1
            if pace:
                await asyncio.sleep(pace)

    async def _fault_at(self, number: int, script: Script) -> None:
        half = number == len(self.pieces) // 2
        if (self.fault == "-cut" and half) or script.die == number:
            # What was written must be on its way before the connection goes.
            await asyncio.sleep(0.02)
            raise RuntimeError("the script cuts the stream here")
        if (self.fault == "-stall" and half) or script.freeze == number:
            raise _Stalled

    def _head(self, kind: str = "chat.completion.chunk") -> dict[str, Any]:
        return {
            "id": self.name,
            "object": kind,
            "created": int(time.time()),
            "model": self.asked.get("model"),
            "system_fingerprint": "fp_scripted",
        }

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event({**self._head(), "choices": [choice], **more})


def _calls(chosen: Any) -> list[tuple[str, str, str]]:
    """Tool calls as a script has them: a call or a list of calls, each a choice in JSON."""
    calls = []
    for number, call in enumerate(chosen if isinstance(chosen, list) else [chosen]):
        arguments = call.get("arguments", {k: v for k, v in call.items() if k != "tool"})
        calls.append((f"call_{number}", call["tool"], json.dumps(arguments)))
    return calls


def _event(data: Any) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def _error(message: str, kind: str, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


async def _body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def _answer(send: Any, status: int, body: Any, headers: Any = ()) -> None:
    raw = json.dumps(body).encode()
    length = [(b"content-length", str(len(raw)).encode())]
    every = [*HEADERS_JSON, *length, *headers]
    await send({"type": "http.response.start", "status": status, "headers": every})
    await send({"type": "http.response.body", "body": raw})


def _config(app: ScriptedUpstream, port: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )


@dataclass
class Served:
    """A scripted upstream that listens.

    Attributes:
        url: Its base URL, as an operator would write it.
    """

    url: str
    app: ScriptedUpstream

    @property
    def stats(self) -> Stats:
        """What it has counted."""
        return self.app.stats


@contextlib.contextmanager
def served() -> Iterator[Served]:
    """Serve one in a thread of this process."""
    app = ScriptedUpstream()
    server = uvicorn.Server(_config(app, 0))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until = time.monotonic() + 10
        while not server.started:
            assert time.monotonic() < until, "the scripted upstream did not start"
            time.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Served(f"http://127.0.0.1:{port}/v1", app)
    finally:
        server.should_exit = True
        thread.join(5)


KEY = "sk-canary-upstream-0123456789"


def registered(folder: Path, url: str) -> dict[str, str]:
    """Write an operator's files that name an upstream; return the settings that name the files.

    `mock*` is priced with amounts that tell the buckets apart, `free*` costs nothing on purpose,
    `brief*` is waited for half a second, `unpriced` has no price, `named` is called otherwise
    there, `keyless` has a key that is missing, `spread*` has three addresses, of which nobody
    answers at the first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "base_url": url,
        "api_key": "scripted",
        "context_window": 16_384,
        "max_output_tokens": 4_096,
        "capabilities": ["chat", "tools", "json_schema"],
    }
    price = {"from": "2026-01-01", "input": 1, "cached_input": 0.5, "output": 2, "reasoning": 4}
    entries = [
        {"name": "mock*", **about, "prices": price},
        {"name": "free*", **about, "prices": {"input": 0, "output": 0}},
        {
            "name": "brief*",
            **about,
            "prices": price,
            "options": {"first_byte_s": 0.5, "idle_s": 0.5},
        },
        {"name": "unpriced", **about},
        {"name": "named", **about, "prices": price, "upstream_model": "mock-other"},
        {"name": "keyless", **about, "prices": price, "api_key": "missing"},
        {
            "name": "spread*",
            **about,
            "prices": price,
            "base_url": ["http://127.0.0.1:9/v1", url, url],
        },
    ]
    routes = [
        {"name": f"after{fault}", "candidates": [{"model": f"mock{fault}"}, {"model": "scripted"}]}
        for fault in ("-429", "-500", "-401", "-cut", "-inband", "-toolong")
    ]
    file, keys = folder / "upstreams.json", folder / "upstream-keys.json"
    file.write_text(json.dumps({"upstreams": entries, "routes": routes}))
    keys.write_text(json.dumps({"scripted": KEY}))
    return {"OVERLINE_UPSTREAMS": str(file), "OVERLINE_UPSTREAM_KEYS_FILE": str(keys)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=9101)
    uvicorn.Server(_config(ScriptedUpstream(), parser.parse_args().port)).run()
