"""Wakes readers of task events, and tells of calls that are to end: one connection that listens.

A notification only says that there is something new; readers look for themselves from the last
number they saw. So a lost notification costs time, never an event, and after every reconnection
all readers are woken once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import UUID

import psycopg

_CHANNEL = "overline_task"
_CALLS = "overline_call"
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class Wake:
    """One reader's alarm clock."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wakes the reader now, or at its next `wait`."""
        self._event.set()

    async def wait(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - says which
        """Waits until something may be new.

        Args:
            timeout: longest wait in seconds; None waits for ever.

        Returns:
            True when woken, False when the time was up.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class EventHub:
    """Listens once, wakes many; reconnects by itself."""

    def __init__(self, url: str, to_end: Callable[[UUID], object] | None = None) -> None:
        """Prepares; `start` connects.

        Args:
            url: a direct connection (a transaction pooler cannot LISTEN).
            to_end: is told of every call that somebody asked to end.
        """
        self._url = url
        self._to_end = to_end
        self._wakes: dict[str, set[Wake]] = {}
        self._task: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()

    @property
    def listening(self) -> bool:
        """True while the connection stands."""
        return self._listening.is_set()

    async def start(self) -> None:
        """Begins to listen in the background. Does not wait for the connection."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="overline-event-hub")

    async def close(self) -> None:
        """Stops listening."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    @asynccontextmanager
    async def subscribe(self, task_id: UUID) -> AsyncIterator[Wake]:
        """Gives an alarm clock for one task; starts the hub when needed.

        Read after subscribing and before waiting, or an event in between is noticed only at the
        next one.
        """
        await self.start()
        wake = Wake()
        name = str(task_id)
        self._wakes.setdefault(name, set()).add(wake)
        try:
            yield wake
        finally:
            wakes = self._wakes[name]
            wakes.discard(wake)
            if not wakes:
                del self._wakes[name]

    async def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._url,
                    autocommit=True,
                    connect_timeout=5,
                    application_name="overline-events",
                    # A server that vanished without a word is noticed within about ten seconds.
                    keepalives_idle=5,
                    keepalives_interval=2,
                    keepalives_count=3,
                ) as connection:
                    await connection.execute(f"listen {_CHANNEL}")
                    if self._to_end is not None:
                        await connection.execute(f"listen {_CALLS}")
                    pause = _FIRST_PAUSE_S
                    self._listening.set()
                    self._ring_all()
                    async for notice in connection.notifies():
                        if notice.channel == _CALLS and self._to_end is not None:
                            self._to_end(UUID(notice.payload))
                            continue
                        for wake in self._wakes.get(notice.payload, ()):
                            wake.ring()
            except psycopg.Error:
                # Not logged: whoever needs the database notices and says so.
                pass
            finally:
                self._listening.clear()
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _ring_all(self) -> None:
        for wakes in self._wakes.values():
            for wake in wakes:
                wake.ring()
