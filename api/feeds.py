"""One feed a task and process, however many readers it has.

The feed asks the database when it is woken, once; readers that are up to date take what came from
memory. So five hundred readers cost no more statements than one, and a reader that does not take
its events holds up nobody: it comes back to the database for what the feed has let go of.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self
from uuid import UUID

from fastapi.sse import ServerSentEvent

from api.restoring import redactions_for, restored, safety_of
from api.task_views import StreamEvent
from store import tasks
from store.database import Database
from store.errors import DatabaseUnavailable
from store.events import Event, EventHub, Wake, last_event, read_events
from store.screening import Screening

__all__ = ["Feed", "Feeds", "Item"]

_PAGE = 500
# What a reader may be behind before it reads from the database again, in events.
_REMEMBERED = 2_000
# For the case that a notification got lost with its connection; once a task, not once a reader.
_SAFETY_POLL_S = 5.0
_OUTAGE_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Item:
    """One event, ready to be sent: it is put into words once for all readers."""

    seq: int
    ends_task: bool
    sent: ServerSentEvent

    @classmethod
    def of(cls, event: Event, payload: dict[str, Any]) -> Self:
        """Put an event into words, with what its caller is told."""
        data = StreamEvent(
            seq=event.seq,
            step=event.step or 0,
            type=event.type,
            at=event.at,
            payload=payload,
        )
        sent = ServerSentEvent(id=event.id, event=event.type, raw_data=data.model_dump_json())
        return cls(event.seq, event.ends_task, sent)


class Feed:
    """What is new of one task, for all readers of this process."""

    def __init__(
        self,
        database: Database,
        screening: Screening,
        organisation_id: UUID,
        task_id: UUID,
        *,
        restores: bool = True,
    ) -> None:
        """Prepare; `run` begins.

        Args:
            database: Where events are read.
            screening: Where it is looked up what was taken out of them.
            organisation_id: The task's tenant.
            task_id: The task.
            restores: Its readers are told what was taken out.
        """
        self._database = database
        self._screening = screening
        self._organisation_id = organisation_id
        self._task_id = task_id
        self._restores = restores
        self._scope: UUID | None = None
        self._answers_json = False
        self._recent: deque[Item] = deque(maxlen=_REMEMBERED)
        self._last: int | None = None
        self._ended = False
        self._failure: Exception | None = None
        self._changed = asyncio.Event()

    @property
    def broken(self) -> bool:
        """True when it will give nothing more, for a reason nobody foresaw."""
        return self._failure is not None

    async def next(self, after: int) -> list[Item]:
        """Wait for events after a number, and return some of them; none when no more will come.

        Raises:
            DatabaseUnavailable: They had to be read from the database, which is away.
        """
        while True:
            changed = self._changed
            if self._last is not None and after < self._last:
                first = self._recent[0].seq if self._recent else self._last + 1
                if after + 1 >= first:
                    # Numbers have no gaps, so a number is a place.
                    place = after + 1 - first
                    return list(islice(self._recent, place, place + _PAGE))
                return await self._read(after)
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return []
            await changed.wait()

    async def run(self, wake: Wake) -> None:
        """Read what is new whenever woken, until the task's last event; runs in the background."""
        try:
            await self._run(wake)
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._tell()

    async def _run(self, wake: Wake) -> None:
        over: bool | None = None
        while not self._ended:
            try:
                if over is None or self._last is None:
                    # What is there already, its readers fetch for themselves, as far as they need.
                    over = await self._is_over()
                    self._last = await last_event(
                        self._database, self._organisation_id, self._task_id
                    )
                    self._tell()
                new = await self._read(self._last)
                if new:
                    self._recent.extend(new)
                    self._last = new[-1].seq
                    self._ended = new[-1].ends_task
                    self._tell()
                if self._ended or len(new) == _PAGE:
                    continue
                # Over before this last read: nothing comes any more.
                self._ended = over
                if not over and not await wake.wait(_SAFETY_POLL_S):
                    over = await self._is_over()
            except DatabaseUnavailable:
                # Nothing is lost: what is new is read when it is back.
                await asyncio.sleep(_OUTAGE_PAUSE_S)

    async def _read(self, after: int) -> list[Item]:
        events = await read_events(
            self._database, self._organisation_id, self._task_id, after=after, limit=_PAGE
        )
        payloads = [event.payload for event in events]
        redactions = await redactions_for(
            self._screening, self._organisation_id, self._scope, payloads
        )
        return [
            Item.of(
                event, restored(event.payload, redactions, as_json=self._is_json(event.payload))
            )
            for event in events
        ]

    def _is_json(self, payload: dict[str, Any]) -> bool:
        channel = payload.get("channel")
        return channel == "tool_call" or (channel == "answer" and self._answers_json)

    async def _is_over(self) -> bool:
        task = await tasks.get_task(self._database, self._organisation_id, self._task_id)
        safety = safety_of(task.input) if task is not None and self._restores else None
        if task is not None and safety is not None:
            self._scope = safety.scope
            self._answers_json = task.input.get("output_schema") is not None
        return task is None or task.finished_at is not None

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass
class _Open:
    feed: Feed
    running: asyncio.Task[None]
    readers: int = 0


class Feeds:
    """The feeds of one process; one is open as long as it has readers."""

    def __init__(self, database: Database, screening: Screening, hub: EventHub) -> None:
        self._database = database
        self._screening = screening
        self._hub = hub
        self._open: dict[tuple[UUID, UUID, bool], _Open] = {}

    @asynccontextmanager
    async def of(
        self, organisation_id: UUID, task_id: UUID, *, restores: bool = True
    ) -> AsyncIterator[Feed]:
        """Give the feed of a task to a reader, who is told what was taken out of it, or is not."""
        key = (organisation_id, task_id, restores)
        opened = self._open.get(key)
        if opened is None or opened.feed.broken:
            feed = Feed(
                self._database, self._screening, organisation_id, task_id, restores=restores
            )
            opened = _Open(feed, asyncio.create_task(self._run(feed, task_id)))
            self._open[key] = opened
        opened.readers += 1
        try:
            yield opened.feed
        finally:
            opened.readers -= 1
            if not opened.readers:
                if self._open.get(key) is opened:
                    del self._open[key]
                opened.running.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await opened.running

    async def _run(self, feed: Feed, task_id: UUID) -> None:
        # Subscribed first, read then: what comes in between is not overlooked.
        async with self._hub.subscribe(task_id) as wake:
            await feed.run(wake)
