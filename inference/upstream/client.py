"""The harness's way to an upstream: HTTP, one pool of connections a process, no retries.

Not OpenAI's own package: a stream of 35 events costs 7.5 ms of CPU with it, 0.6 ms here, and its
retries, time limits and error texts would all have to be turned off.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from inference.errors import EngineFailed, RequestRefused
from inference.upstream import failures
from inference.upstream.estimate import estimate_texts
from inference.upstream.messages import ChatRequest, EmbeddingAnswer, Upstream
from inference.upstream.reading import limited, typed_failures
from inference.upstream.stream import ChatStream
from inference.upstream.wire import Usage, read_embeddings
from inference.usage import TokenUsage

__all__ = ["UpstreamClient", "Upstreams"]

_MAX_ERROR_BYTES = 65_536
_MAX_ANSWER_BYTES = 64_000_000
# A call sent on a connection that the other side is just closing fails, and may not be sent again
# (RFC 9112, 9.3.1). uvicorn, so vLLM and SGLang, and Node close after 5 s: be earlier than that.
_KEEP_ALIVE_S = 4.0
_DRAIN_S = 1.0
_ERROR_S = 5.0


class Upstreams:
    """The pool: one a process, closed with it. Made within a running event loop or before."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._draining: set[asyncio.Task[None]] = set()

    def at(self, upstream: Upstream) -> UpstreamClient:
        """Return the client of an upstream; cheap, it holds nothing of its own."""
        return UpstreamClient(self, upstream)

    async def close(self) -> None:
        """Close every connection; running streams end."""
        session, self._session = self._session, None
        for task in self._draining:
            task.cancel()
        if session is not None:
            await session.close()

    def session(self) -> aiohttp.ClientSession:
        """Return the session, opened by the first call."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # The number of calls at a time is for others to limit.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
                auto_decompress=True,
            )
        return self._session

    def drain(self, response: aiohttp.ClientResponse) -> None:
        """Read the end of an answer whose content is complete, so that its connection is kept."""
        if response.content.at_eof():
            response.release()
            return
        task = asyncio.ensure_future(_drained(response))
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)


class UpstreamClient:
    """One upstream. Never retries: retry policies live with the workflows."""

    def __init__(self, pool: Upstreams, upstream: Upstream) -> None:
        self._pool = pool
        self.upstream = upstream

    def stream(self, request: ChatRequest) -> ChatStream:
        """Start a chat completion, always streamed underneath.

        Iterate over it: chunks, the last one with `final`. Closing it, or cancelling the task that
        reads it, closes the connection at once. Iterating raises `EngineError`s (see
        `inference.errors`), with `told`, `sent` and `usage` set.
        """
        return ChatStream(
            request,
            self.upstream.name,
            self.upstream.key,
            opened=lambda: self._open(request),
            ended=self._ended,
        )

    async def embeddings(
        self, body: Mapping[str, Any], *, limit_s: float = 60.0
    ) -> EmbeddingAnswer:
        """Ask for vectors.

        Args:
            body: The request; `model` is the upstream's name of it, `input` a list of texts.
            limit_s: Seconds the call may take.

        Raises:
            EngineError: As of `stream`.
        """
        response = await self._post("/embeddings", _encoded(body), {}, 5.0, limit_s)
        complete = False
        try:
            with typed_failures(self.upstream.name, limit_s):
                async with asyncio.timeout(limit_s):
                    raw = await limited(response, _MAX_ANSWER_BYTES)
            complete = True
        finally:
            self._ended(response, complete)
        try:
            answer = read_embeddings(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EngineFailed(
                f"upstream {self.upstream.name!r} sent vectors that cannot be read", "bad_answer"
            ) from error
        return EmbeddingAnswer(
            data=msgspec.Raw(bytes(answer.data)),
            usage=_usage_of_vectors(answer.usage, body["input"]),
            model=answer.model,
        )

    async def _open(self, request: ChatRequest) -> aiohttp.ClientResponse:
        options = request.parameters.get("stream_options") or {}
        body = {
            **request.parameters,
            "model": request.model,
            "messages": request.messages,
            "stream": True,
            "stream_options": {**options, "include_usage": True},
        }
        return await self._post(
            "/chat/completions",
            _encoded(body),
            request.headers,
            request.connect_s,
            min(request.first_byte_s, request.deadline_s),
        )

    async def _post(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        connect_s: float,
        first_byte_s: float,
    ) -> aiohttp.ClientResponse:
        """The answer to a request, once its status is known to be good."""
        upstream = self.upstream
        sent = {"content-type": "application/json", "user-agent": "overline", **headers}
        if upstream.key is not None:
            sent["authorization"] = f"Bearer {upstream.key}"
        with typed_failures(upstream.name, first_byte_s):
            async with asyncio.timeout(first_byte_s):
                response = await self._pool.session().post(
                    upstream.base_url.rstrip("/") + path,
                    data=body,
                    headers=sent,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
                )
        if response.status == 200:
            return response
        text = b""
        try:
            # Why it failed is worth a moment, and whatever goes wrong now changes nothing.
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with asyncio.timeout(_ERROR_S):
                    text = await response.content.read(_MAX_ERROR_BYTES)
        finally:
            self._ended(response, response.content.at_eof())
        raise failures.failure_of_status(
            upstream.name, response.status, response.headers, text, upstream.key
        )

    def _ended(self, response: aiohttp.ClientResponse, complete: bool) -> None:
        # Closing is what tells the upstream to stop; only what is complete is kept alive.
        if complete:
            self._pool.drain(response)
        else:
            response.close()


async def _drained(response: aiohttp.ClientResponse) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in response.content.iter_any():
                pass
            response.release()
            return
    response.close()


def _usage_of_vectors(told: Usage | None, texts: Sequence[str]) -> TokenUsage:
    """Return the upstream's count of what it read, which is all there is; or a likely one."""
    read = None
    if told is not None:
        read = told.total_tokens if told.prompt_tokens is None else told.prompt_tokens
    if read is None:
        return TokenUsage(prompt_tokens=estimate_texts(texts))
    return TokenUsage(prompt_tokens=max(0, read), source="upstream")


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (ValueError, TypeError, RecursionError) as error:
        # Lone surrogates, numbers that are none, types JSON does not have.
        raise RequestRefused("the request cannot be written as JSON", "bad_request") from error
