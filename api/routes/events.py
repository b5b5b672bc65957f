"""A task's events as they happen: tokens, steps, tools, the end.

All readers of a task share one feed, which is woken by the database's notification. Events are
read from the task's one ordered stream after the last id the reader saw, so coming back leaves no
gap and repeats nothing. FastAPI puts a comment on the wire every 15 s of silence.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Header
from fastapi.sse import EventSourceResponse, ServerSentEvent

from api.authentication import Caller, parts_of
from api.openapi import answers
from api.parts import Parts
from api.problems import not_found
from api.restoring import scope_for
from api.stream_waiting import next_items
from api.task_views import StreamEvent
from observability.metrics import sse_reader
from store import tasks
from store.events import read_events

__all__ = ["router"]

router = APIRouter(tags=["tasks"])

PartsOf = Annotated[Parts, Depends(parts_of)]

_RECONNECT_MS = 500


async def _visible_task(task_id: UUID, caller: Caller, parts: PartsOf) -> tasks.Task:
    """Dependency: the task, or 404 before the stream begins."""
    task = await tasks.get_task(parts.database, caller.organisation_id, task_id)
    if task is None:
        raise not_found("task")
    return task


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a reader goes on.

    Attributes:
        after: Number of the last event it has; 0: it begins.
        unknown: The id it came with, when that is none of the task's.
    """

    after: int = 0
    unknown: str | None = None


async def _place(
    task: Annotated[tasks.Task, Depends(_visible_task)],
    caller: Caller,
    parts: PartsOf,
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            pattern=r"^[0-9]{1,9}:[0-9]{1,18}$",
            description="Id of the last event seen (`step:seq`); without it the stream begins "
            "with the task's first event. One that is not the task's is answered with the event "
            "`gap`, and the stream begins with the first one.",
        ),
    ] = None,
) -> _Place:
    """Dependency: where to go on. An id of another stream must not pass for a place in this one."""
    step, _, seq = (last_event_id or "0:0").partition(":")
    after = int(seq)
    if after == 0:
        return _Place()
    seen = await read_events(
        parts.database, caller.organisation_id, task.task_id, after=after - 1, limit=1
    )
    if seen and (seen[0].seq, seen[0].step or 0) == (after, int(step)):
        return _Place(after)
    return _Place(unknown=last_event_id)


def _gap(unknown: str) -> ServerSentEvent:
    """Say that what the reader has is not this stream's, and that all of it comes now."""
    data = StreamEvent(
        seq=0, step=0, type="gap", at=datetime.now(UTC), payload={"unknown": unknown}
    )
    return ServerSentEvent(id="0:0", event="gap", raw_data=data.model_dump_json())


@router.get(
    "/v1/tasks/{task_id}/events",
    response_class=EventSourceResponse,
    responses=answers(404)
    | {
        200: {
            "description": "Server-sent events. `id` is `step:seq`: send the last one seen as "
            "`Last-Event-ID` to go on after it. `event` is the type, `data` a `StreamEvent`. "
            "`gap` comes first when that id is none of this task's: forget what you have. "
            "The stream ends after the task's last event."
        }
    },
    summary="Watch a task",
)
async def stream_events(
    task: Annotated[tasks.Task, Depends(_visible_task)],
    caller: Caller,
    parts: PartsOf,
    place: Annotated[_Place, Depends(_place)],
) -> AsyncIterator[ServerSentEvent]:
    """Stream a task's events from its first, or from where the reader left off, to its last."""
    after = place.after
    # Says at once that the stream is open, and how soon to come back should it break.
    yield ServerSentEvent(comment="open", retry=_RECONNECT_MS)
    if place.unknown is not None:
        yield _gap(place.unknown)
    with sse_reader():
        restores = scope_for(caller, task.team_id, task.input) is not None
        async with parts.feeds.of(caller.organisation_id, task.task_id, restores=restores) as feed:
            while (items := await next_items(parts, feed, after)) is not None:
                for item in items:
                    after = item.seq
                    yield item.sent
                    if item.ends_task:
                        return
