"""One streamed chat completion, read to its end in whatever form it comes."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from inference.errors import EngineError, EngineFailed, EngineUnavailable
from inference.upstream.estimate import TextCount, estimate_prompt
from inference.upstream.events import Events
from inference.upstream.failures import failure_in_stream
from inference.upstream.messages import ChatChunk, ChatFinal, ChatRequest, ChatTimings, Delta
from inference.upstream.reading import limited, typed_failures
from inference.upstream.wire import Event, Usage, deltas_of, read_event, usage_of
from inference.usage import TokenUsage

__all__ = ["ChatStream"]

_DONE = b"[DONE]"
_MAX_ANSWER_BYTES = 64_000_000


class ChatStream:
    """Chunks of an answer, as an async iterator and an async context manager.

    Attributes:
        sent: Whether anything of the answer has been yielded.
    """

    def __init__(
        self,
        request: ChatRequest,
        upstream: str,
        secret: str | None,
        *,
        opened: Callable[[], Awaitable[aiohttp.ClientResponse]],
        ended: Callable[[aiohttp.ClientResponse, bool], None],
    ) -> None:
        """Make a stream; nothing is sent until it is read.

        Args:
            request: What is asked.
            upstream: What the upstream is called here.
            secret: The key it is asked with, to be kept out of what it says.
            opened: Sends the request and gives the answer.
            ended: Takes the answer back, with whether it was complete.
        """
        self._request = request
        self._upstream = upstream
        self._secret = secret
        self._opened = opened
        self._ended = ended
        self._told: TokenUsage | None = None
        # Whether something was written that is not in what was told.
        self._behind = False
        self._prompt: int | None = None
        self._count = TextCount()
        self._pieces = 0
        self._about = Event()
        self._finish: str | None = None
        self._started_at = 0.0
        self._first_at = 0.0
        self.sent = False
        self._chunks = self._run()

    def __aiter__(self) -> AsyncGenerator[ChatChunk, None]:
        """Returns the chunks."""
        return self._chunks

    async def __aenter__(self) -> Self:
        """Returns the stream itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection, if the answer is not complete."""
        await self._chunks.aclose()

    @property
    def usage(self) -> TokenUsage:
        """What has been used so far: the upstream's own count, once it has told one of it all."""
        # Most upstreams send an event a token, some send several tokens in one.
        counted = max(self._count.tokens, self._pieces)
        if (told := self._told) is not None:
            if not self._behind or told.completion_tokens >= counted:
                return told
            return dataclasses.replace(told, completion_tokens=counted, source="estimate")
        if self._started_at == 0.0:
            return TokenUsage()
        if self._prompt is None:
            self._prompt = estimate_prompt(self._request.messages, self._request.parameters)
        return TokenUsage(prompt_tokens=self._prompt, completion_tokens=counted)

    async def _run(self) -> AsyncGenerator[ChatChunk, None]:
        try:
            self._started_at = time.perf_counter()
            response = await self._opened()
            complete = False
            try:
                if response.headers.get("content-type", "").startswith("application/json"):
                    yield self._whole(await self._read_whole(response), response)
                    complete = True
                    return
                events = Events()
                while True:
                    with typed_failures(self._upstream, self._request.idle_s):
                        async with asyncio.timeout(self._patience()):
                            received = await response.content.readany()
                    deltas, done, failed = self._take(events, received)
                    if failed is not None:
                        # What was said before it, in the same bytes, was said.
                        if self._pieces and deltas:
                            self.sent = True
                            yield ChatChunk(deltas)
                        raise failed
                    if done or not received:
                        # Kept alive, unless there is something after the end.
                        complete = done or response.content.at_eof()
                        yield ChatChunk(deltas, self._final(response, done=done))
                        return
                    if deltas:
                        self.sent = True
                        yield ChatChunk(deltas)
            finally:
                self._ended(response, complete)
        except EngineError as error:
            error.sent = self.sent
            error.usage = self.usage
            raise

    def _patience(self) -> float:
        """Seconds the next byte may take."""
        left = self._started_at + self._request.deadline_s - time.perf_counter()
        if left <= 0:
            raise EngineUnavailable(
                f"upstream {self._upstream!r} took more than {self._request.deadline_s:g} s",
                "deadline",
            )
        return min(left, self._request.idle_s)

    def _take(
        self, events: Events, received: bytes
    ) -> tuple[tuple[Delta, ...], bool, EngineError | None]:
        """Return what some bytes add, whether the upstream said that it is done, or its failure."""
        found: list[Delta] = []
        try:
            for data in events.feed(received) if received else events.end():
                if data == _DONE:
                    return tuple(found), True, None
                self._read(data, found)
        except EngineError as error:
            return tuple(found), False, error
        except (ValueError, RecursionError):
            # Not the text: what cannot be read may be anything.
            said = f"upstream {self._upstream!r} sent an event that cannot be read"
            return tuple(found), False, EngineFailed(said, "bad_answer")
        return tuple(found), False, None

    def _read(self, data: bytes, found: list[Delta]) -> None:
        event = read_event(data)
        if event.error or event.object == "error":
            said = event.error or msgspec.json.decode(data)
            raise failure_in_stream(self._upstream, said, self._secret)
        if event.id and self._about.id is None:
            self._about = event
        for delta in deltas_of(event):
            self._note(delta)
            found.append(delta)
        if event.usage is not None:
            self._hear(event.usage)

    def _hear(self, usage: Usage) -> None:
        """Take a count of all that was written until now."""
        told = usage_of(usage)
        # One that is repeated as it was, event after event, says nothing of what came in between.
        if told is not None and told != self._told:
            self._told = told
            self._behind = self._pieces > 0 and not usage.tells_output

    def _note(self, delta: Delta) -> None:
        if delta.finish_reason and delta.choice == 0:
            self._finish = delta.finish_reason
        written = False
        for text in (delta.text, delta.refusal, delta.reasoning):
            if text:
                self._count.add(text)
                written = True
        for piece in delta.tool_calls:
            self._count.add(piece.name or "")
            self._count.add(piece.arguments)
            written = True
        if written:
            self._behind = True
            self._pieces += 1
            if self._first_at == 0.0:
                self._first_at = time.perf_counter()

    def _final(self, response: aiohttp.ClientResponse, *, done: bool) -> ChatFinal:
        if self._finish is None and not done:
            raise EngineUnavailable(
                f"the stream of upstream {self._upstream!r} ended in the middle", "incomplete"
            )
        now = time.perf_counter()
        return ChatFinal(
            finish_reason=self._finish or "stop",
            usage=self.usage,
            timings=ChatTimings(
                first_token_ms=((self._first_at or now) - self._started_at) * 1000,
                total_ms=(now - self._started_at) * 1000,
            ),
            response_id=self._about.id,
            model=self._about.model,
            system_fingerprint=self._about.system_fingerprint,
            request_id=response.headers.get("x-request-id"),
        )

    async def _read_whole(self, response: aiohttp.ClientResponse) -> bytes:
        with typed_failures(self._upstream, self._request.deadline_s):
            async with asyncio.timeout(self._request.deadline_s):
                return await limited(response, _MAX_ANSWER_BYTES)

    def _whole(self, data: bytes, response: aiohttp.ClientResponse) -> ChatChunk:
        """Return the answer of an upstream that does not stream."""
        found: list[Delta] = []
        try:
            self._read(data, found)
        except (ValueError, RecursionError) as error:
            raise EngineFailed(
                f"upstream {self._upstream!r} sent an answer that cannot be read", "bad_answer"
            ) from error
        return ChatChunk(tuple(found), self._final(response, done=False))
