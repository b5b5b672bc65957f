"""From a call to what is sent of it, and what becomes of it when nobody listens any more.

An error before the first byte is a status; after it, it is an event, and the stream has no last
line. A client that goes away ends the call at the engine, or the call is finished without it, as
it was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from string import punctuation
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.lane import Call, Lane
from api.openai.errors import error_of, error_response
from api.openai.failures import openai_error
from api.openai.rate_headers import rate_headers
from api.openai.rendering import Rendering
from workflows import errors
from workflows.contracts.call import CLIENT_GONE, OnDisconnect

__all__ = ["CallAnswer", "call_headers"]

_VISIBLE = punctuation.replace("%", "")


def call_headers(
    *,
    task_id: str,
    model: str,
    cache: str,
    replayed: bool,
    cost_usd: str | None,
    rate: Mapping[str, Any] | None = None,
    attempts: int | None = None,
    safety: str | None = None,
) -> dict[str, str]:
    """Return the headers of an answer.

    Behind a wildcard a model has the name that its caller made up: what a header cannot have in it
    is percent-encoded.
    """
    headers = {
        "x-overline-task": task_id,
        "x-overline-model": quote(model, safe=_VISIBLE, errors="replace"),
        "x-overline-cache": cache,
        "openai-version": "2020-10-01",
    }
    if cost_usd is not None:
        headers["x-overline-cost-usd"] = cost_usd
    if attempts is not None:
        headers["x-overline-attempts"] = str(attempts)
    if safety is not None:
        headers["x-overline-safety"] = safety
    if replayed:
        headers["idempotency-replayed"] = "true"
    warnings = (rate or {}).get("budgets")
    if warnings:
        headers["x-overline-budget-warning"] = ", ".join(
            f"{each['scope']};period={each['period']};limit_usd={each['limit_usd']}"
            for each in warnings
        )
    return headers | rate_headers(rate)


@dataclass
class _Client:
    """Who is answered: whether they are still there."""

    gone: bool = False


@contextlib.asynccontextmanager
async def _watching(receive: Receive, policy: OnDisconnect) -> AsyncIterator[_Client]:
    """Watch for the client to go away; the task that answers is cancelled then, if it should be."""
    client = _Client()
    answering = asyncio.current_task()
    assert answering is not None

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        client.gone = True
        if policy == "cancel":
            answering.cancel(CLIENT_GONE)

    watcher = asyncio.create_task(watch())
    try:
        yield client
    finally:
        watcher.cancel()


def _ends_the_call(cancelled: asyncio.CancelledError) -> bool:
    """Whether it is the call that is cancelled, and not who answers; then they may go on."""
    task = asyncio.current_task()
    if cancelled.args != (CLIENT_GONE,) or task is None:
        return False
    task.uncancel()
    return True


@contextlib.contextmanager
def _told_of_its_end() -> Iterator[None]:
    """Make the end of a call an error to tell: somebody else may end it while its client waits."""
    try:
        yield
    except asyncio.CancelledError as cancelled:
        if not _ends_the_call(cancelled):
            raise
        raise error_of(
            errors.Conflict,
            "This request was cancelled while it was made.",
            code="request_cancelled",
        ) from None


class CallAnswer(Response):
    """The answer that a call is.

    Args:
        lane: Who has opened it, and ends it.
        opened: Opens it.
        rendering: How the route answers.
        stream: As a stream, or whole.
        policy: What becomes of it when the client goes away.
    """

    background = None

    def __init__(
        self,
        lane: Lane,
        opened: Callable[[], Awaitable[Call]],
        rendering: Rendering,
        *,
        stream: bool,
        policy: OnDisconnect,
    ) -> None:
        # Not the parent's: there is nothing to send yet.
        self.lane = lane
        self.opened = opened
        self.rendering = rendering
        self.stream = stream
        self.policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        try:
            async with _watching(receive, self.policy) as client:
                answer = await self._made(scope, client, send)
                if answer is not None and not client.gone:
                    await answer(scope, receive, send)
        except asyncio.CancelledError as cancelled:
            # The client left while the last of it was sent.
            if not _ends_the_call(cancelled):
                raise

    async def _made(self, scope: Scope, client: _Client, send: Send) -> Response | None:
        """Make the call; return what there is to send of it, which is nothing after a stream."""
        request_id = str(scope.get("state", {}).get("request_id", ""))
        call: Call | None = None
        try:
            with _told_of_its_end():
                call = await self.opened()
                scope["state"]["task_id"] = str(call.task_id)
                if self.stream:
                    await self._stream(call, client, send, request_id)
                    return None
                async for _ in call.pieces():
                    pass
                return self._whole(call)
        except Exception as error:
            told = self.rendering.told(openai_error(error))
            answer = error_response(told, request_id)
            if call is not None:
                self.lane.let_go(call)
                answer.headers["x-overline-task"] = str(call.task_id)
            return answer

    def _whole(self, call: Call) -> Response:
        return Response(
            msgspec.json.encode(self.rendering.whole(call)),
            media_type="application/json",
            headers=_headers(call, f"{call.billed_usd:f}"),
        )

    async def _stream(self, call: Call, client: _Client, send: Send, request_id: str) -> None:
        rendering = self.rendering

        async def write(data: bytes, *, more: bool = True) -> None:
            if (data or not more) and not client.gone:
                await send({"type": "http.response.body", "body": data, "more_body": more})

        headers = {
            **_headers(
                call, f"{call.billed_usd:f}" if call.cache == "hit" or call.replayed else None
            ),
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
        }
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            }
        )
        try:
            with _told_of_its_end():
                await write(rendering.begin(call))
                async for deltas in call.pieces():
                    await write(rendering.of(deltas))
                end = rendering.end(call)
        except Exception as error:
            self.lane.let_go(call)
            await write(rendering.broken(openai_error(error), request_id), more=False)
            return
        await write(end, more=False)


def _headers(call: Call, cost_usd: str | None) -> Mapping[str, str]:
    return call_headers(
        task_id=str(call.task_id),
        model=call.model,
        cache=call.cache,
        replayed=call.replayed,
        cost_usd=cost_usd,
        rate=call.rate,
        attempts=call.attempts,
        safety=call.safety,
    )
