"""A task's events as they happen: tokens, steps, tools, the end.

A reader is woken by the database's notification; between two of those it costs one query every
few seconds, for the case that a notification got lost with its connection. Events are read from
the task's one ordered stream after the last id the reader saw, so coming back leaves no gap and
repeats nothing. FastAPI puts a comment on the wire every 15 s of silence.
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
from api.openapi import answers
from api.parts import Parts
from api.problems import not_found
from api.task_views import FINAL_EVENTS, StreamEvent
from observability.metrics import sse_reader
from store import tasks
from store.errors import DatabaseUnavailable
from store.events import Event, Wake, read_events

__all__ = ["router"]

router = APIRouter(tags=["tasks"])

PartsOf = Annotated[Parts, Depends(parts_of)]

_PAGE = 500
_SAFETY_POLL_S = 5.0
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
    organisation = caller.organisation_id
    # Says at once that the stream is open, and how soon to come back should it break.
    yield ServerSentEvent(comment="open", retry=_RECONNECT_MS)
    with sse_reader():
        async with parts.hub.subscribe(task.task_id) as wake:
            ended = task.finished_at is not None
            while not parts.stopping.is_set():
                try:
                    events = await read_events(
                        parts.database, organisation, task.task_id, after=after, limit=_PAGE
                    )
                except DatabaseUnavailable:
                    # Nothing is lost: the reader waits here, and goes on when it is back.
                    await _pause(parts, 1.0)
                    continue
                for event in events:
                    after = event.seq
                    yield _render(event)
                    if event.type in FINAL_EVENTS:
                        return
                if len(events) == _PAGE:
                    continue
                if ended:
                    return
                woken = await _wait(parts, wake, _SAFETY_POLL_S)
                if not woken:
                    ended = await _has_ended(parts, organisation, task.task_id)


async def _wait(parts: Parts, wake: Wake, timeout_s: float) -> bool:
    """Wait for news of the task, the end of this process, or the time limit; news is True."""
    waiting = asyncio.ensure_future(wake.wait(timeout_s))
    stopping = asyncio.ensure_future(parts.stopping.wait())
    try:
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return bool(waiting.done() and waiting.result())
    finally:
        for future in (waiting, stopping):
            future.cancel()
        await asyncio.gather(waiting, stopping, return_exceptions=True)


async def _pause(parts: Parts, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await parts.stopping.wait()


async def _has_ended(parts: Parts, organisation: UUID, task_id: UUID) -> bool:
    """Tell whether the task ended before now, so that the next read sees its last event."""
    try:
        task = await tasks.get_task(parts.database, organisation, task_id)
    except DatabaseUnavailable:
        return False
    return task is None or task.finished_at is not None


def _render(event: Event) -> ServerSentEvent:
    data = StreamEvent(
        seq=event.seq,
        step=event.step or 0,
        type=event.type,
        at=event.at,
        payload=event.payload,
    )
    return ServerSentEvent(id=f"{data.step}:{data.seq}", event=data.type, data=data)
