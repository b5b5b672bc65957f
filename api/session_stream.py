"""The events of a session: one stream over all its turns, in their order.

Every turn is a task with a stream of its own; here they follow each other, each begun by what was
said. An id is `turn:seq`, so that a reader goes on where it was, whichever turn that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from fastapi.sse import ServerSentEvent

from api.feeds import Item
from api.message_views import SessionEvent
from api.parts import Parts
from api.restoring import redactions_for, restored
from api.stream_waiting import next_items, wait_or_stop
from store import sessions
from store.errors import DatabaseUnavailable
from store.hub import Wake
from store.sessions import SessionMessage

__all__ = ["SessionReader"]

# For the case that a notification got lost with its connection.
_SAFETY_POLL_S = 5.0


@dataclass
class SessionReader:
    """Reads the turns of one session.

    Attributes:
        turn: Number of the message it is at.
        seq: The last event it has of that turn; -1: not even the message.
        restores: It is told what was taken out of the texts.
    """

    parts: Parts
    organisation_id: UUID
    session_id: UUID
    turn: int = 1
    seq: int = -1
    restores: bool = True

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """Give what comes until the session is closed and all in it is over."""
        # Subscribed first, read then: what comes in between is not overlooked.
        async with self.parts.hub.subscribe(self.session_id) as wake:
            while not self.parts.stopping.is_set():
                try:
                    message, over = await self._look()
                except DatabaseUnavailable:
                    await wait_or_stop(self.parts)
                    continue
                if message is None:
                    if over is not None:
                        yield self._say("session.closed", over, {})
                        return
                    await self._sleep(wake)
                    continue
                if self.seq < 0:
                    self.seq = 0
                    content = await self._restored(message.content)
                    said = {"content": content, "key_id": str(message.key_id)}
                    yield self._say("message", message.created_at, said)
                if message.task_id is not None:
                    async for event in self._turn(message.task_id):
                        yield event
                    if self.parts.stopping.is_set():
                        return
                elif message.code is not None:
                    if self.seq < 1:
                        self.seq = 1
                        why = {"code": message.code, "message": message.detail}
                        yield self._say("turn.refused", message.created_at, why)
                else:
                    await self._sleep(wake)
                    continue
                self.turn, self.seq = self.turn + 1, -1

    async def _look(self) -> tuple[SessionMessage | None, datetime | None]:
        """Return the message it is at; where there is none, since when there will be none."""
        database, organisation = self.parts.database, self.organisation_id
        # Read before the messages: what is said afterwards was said to an open session.
        session = await sessions.get_session(database, organisation, self.session_id)
        found = await sessions.list_messages(
            database, organisation, self.session_id, after=self.turn - 1, limit=1
        )
        if found:
            return found[0], None
        return None, session.closed_at if session else None

    async def _restored(self, content: str) -> str:
        scope = self.session_id if self.restores else None
        redactions = await redactions_for(
            self.parts.screening, self.organisation_id, scope, content
        )
        return restored(content, redactions)

    async def _turn(self, task_id: UUID) -> AsyncIterator[ServerSentEvent]:
        async with self.parts.feeds.of(
            self.organisation_id, task_id, restores=self.restores
        ) as feed:
            while (items := await next_items(self.parts, feed, self.seq)) is not None:
                for item in items:
                    self.seq = item.seq
                    yield self._of_task(task_id, item)
                    if item.ends_task:
                        return

    async def _sleep(self, wake: Wake) -> None:
        waiting = asyncio.ensure_future(wake.wait(_SAFETY_POLL_S))
        stopping = asyncio.ensure_future(self.parts.stopping.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in (waiting, stopping):
                future.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(waiting, stopping, return_exceptions=True)

    def _of_task(self, task_id: UUID, item: Item) -> ServerSentEvent:
        data = json.loads(item.sent.raw_data or "{}")
        return self._sent(
            SessionEvent.model_validate({**data, "turn": self.turn, "task_id": task_id})
        )

    def _say(self, kind: str, at: datetime, payload: dict[str, Any]) -> ServerSentEvent:
        return self._sent(
            SessionEvent(
                turn=self.turn,
                seq=max(self.seq, 0),
                task_id=None,
                step=0,
                type=kind,
                at=at,
                payload=payload,
            )
        )

    def _sent(self, event: SessionEvent) -> ServerSentEvent:
        return ServerSentEvent(
            id=f"{event.turn}:{event.seq}", event=event.type, raw_data=event.model_dump_json()
        )
