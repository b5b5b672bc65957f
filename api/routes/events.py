"""A task's events as they happen: tokens, steps, tools, the end.

All readers of a task share one feed, which is woken by the database's notification. Events are
read from the task's one ordered stream after the last id the reader saw, so coming back leaves no
gap and repeats nothing. FastAPI puts a comment on the wire every 15 s of silence.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Header
from fastapi.sse import EventSourceResponse, ServerSentEvent

from api.authentication import Caller, parts_of
from api.feeds import Feed, Item
from api.openapi import answers
from api.parts import Parts
from api.problems import not_found
from observability.metrics import sse_reader
from store import tasks
from store.errors import DatabaseUnavailable

__all__ = ["router"]

router = APIRouter(tags=["tasks"])

PartsOf = Annotated[Parts, Depends(parts_of)]

_OUTAGE_PAUSE_S = 1.0
_RECONNECT_MS = 500


async def _visible_task(task_id: UUID, caller: Caller, parts: PartsOf) -> tasks.Task:
    """Dependency: the task, or 404 before the stream begins."""
    task = await tasks.get_task(parts.database, caller.organisation_id, task_id)
    if task is None:
        raise not_found("task")
    return task


@router.get(
    "/v1/tasks/{task_id}/events",
    response_class=EventSourceResponse,
    responses=answers(404)
    | {
        200: {
            "description": "Server-sent events. `id` is `step:seq`: send the last one seen as "
            "`Last-Event-ID` to go on after it. `event` is the type, `data` a `StreamEvent`. "
            "The stream ends after the task's last event."
        }
    },
    summary="Watch a task",
)
async def stream_events(
    task: Annotated[tasks.Task, Depends(_visible_task)],
    caller: Caller,
    parts: PartsOf,
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            pattern=r"^[0-9]{1,9}:[0-9]{1,18}$",
            description="Id of the last event seen (`step:seq`); without it the stream begins "
            "with the task's first event.",
        ),
    ] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Stream a task's events from its first, or from where the reader left off, to its last."""
    after = int(last_event_id.partition(":")[2]) if last_event_id else 0
    # Says at once that the stream is open, and how soon to come back should it break.
    yield ServerSentEvent(comment="open", retry=_RECONNECT_MS)
    with sse_reader():
        async with parts.feeds.of(caller.organisation_id, task.task_id) as feed:
            while (items := await _next(parts, feed, after)) is not None:
                for item in items:
                    after = item.seq
                    yield item.sent
                    if item.ends_task:
                        return


async def _next(parts: Parts, feed: Feed, after: int) -> list[Item] | None:
    """Wait for events; None when there will be no more, or this process ends."""
    waiting = asyncio.ensure_future(feed.next(after))
    stopping = asyncio.ensure_future(parts.stopping.wait())
    try:
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            return None
        return waiting.result() or None
    except DatabaseUnavailable:
        # Nothing is lost: the reader waits here, and goes on when it is back.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OUTAGE_PAUSE_S):
                await parts.stopping.wait()
        return []
    finally:
        for future in (waiting, stopping):
            future.cancel()
        await asyncio.gather(waiting, stopping, return_exceptions=True)
