"""Writing a generation's journal while its tokens arrive, without slowing them.

About every 100 ms what has come is appended, while the stream goes on being read. The first
append is sooner, because somebody is waiting for the first word. While Postgres is away the
tokens are kept and the generation goes on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from temporalio import activity

from inference.messages import MeterReading, Timings
from store import journal
from store.database import Database
from store.decisions import Decision
from store.errors import DatabaseUnavailable, Fenced
from store.journal import AttemptTimings, AttemptUsage, Begun
from workflows.contracts import GenerateInput

__all__ = ["Ended", "JournalWriter"]

FIRST_FLUSH_SECONDS = 0.015
FLUSH_SECONDS = 0.1
OUTAGE_RETRY_SECONDS = 0.5
# How long the end of a finished generation waits for Postgres before the attempt is given up.
OUTAGE_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Ended:
    """A finished generation: everything it made, in all its attempts together."""

    text: str
    completion_tokens: int
    cached_tokens: int
    finish_reason: str


class JournalWriter:
    """Appends one attempt's tokens to the journal; use as an async context manager."""

    def __init__(self, db: Database, call: GenerateInput, begun: Begun) -> None:
        self._db = db
        self._organisation = call.tenant.organisation_id
        self._key = call.generation_key
        self._epoch = begun.epoch
        self._sequence = begun.next_seq
        self._ids: list[int] = []
        self._text = ""
        # A chunk of which it is not known whether it was written: the very same must be sent
        # again, for its sequence number is what makes it once.
        self._unsure: tuple[list[int], str] | None = None
        self._before = begun
        self._made: list[int] = []
        self._made_text = ""
        self._arrived = asyncio.Event()
        self._writing = asyncio.Lock()
        self._pump: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._pump = asyncio.create_task(self._append_regularly())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._pump is not None
        pump, self._pump = self._pump, None
        # An append under way must end before the next one starts, or the order is lost.
        async with self._writing:
            pump.cancel()
        try:
            await pump
        except asyncio.CancelledError:
            pass
        except DatabaseUnavailable:
            pass

    def add(self, token_ids: list[int], text: str) -> None:
        """Take tokens that arrived; they are written soon.

        Raises:
            Fenced: A newer attempt has taken over; this one must stop.
        """
        if self._pump is not None and self._pump.done() and not self._pump.cancelled():
            self._pump.result()
        self._ids.extend(token_ids)
        self._made.extend(token_ids)
        self._text += text
        self._made_text += text
        self._arrived.set()

    async def flush(self) -> None:
        """Write what has arrived and is not written, once, if Postgres is there."""
        try:
            await self._append()
        except DatabaseUnavailable:
            activity.logger.warning("journal not flushed: Postgres is away")

    async def finish(
        self,
        usage: AttemptUsage,
        finish_reason: str,
        stop_reason: str | None,
        timings: Timings,
        decision: Decision | None = None,
    ) -> Ended:
        """Write the rest and the end of the generation, in one statement.

        Args:
            usage: What it used.
            finish_reason: How it ended.
            stop_reason: What ended it.
            timings: How long it took.
            decision: What the task's policy decided about it.

        Raises:
            DatabaseUnavailable: Postgres stayed away for too long.
            Fenced: A newer attempt has taken over.
        """
        waited = 0.0
        while True:
            try:
                kept = await self._end(
                    usage,
                    "succeeded",
                    finish_reason,
                    stop_reason,
                    AttemptTimings(
                        queue_ms=timings.queue_ms,
                        first_token_ms=timings.first_token_ms,
                        duration_ms=timings.total_ms,
                    ),
                    decision,
                )
                break
            except DatabaseUnavailable:
                if waited >= OUTAGE_PATIENCE_SECONDS:
                    raise
                waited += OUTAGE_RETRY_SECONDS
                await asyncio.sleep(OUTAGE_RETRY_SECONDS)
        if not kept:
            raise Fenced("a newer attempt has taken over this generation")
        return Ended(
            text=self._before.text + self._made_text,
            completion_tokens=len(self._before.generated_ids) + len(self._made),
            cached_tokens=usage.cached_tokens,
            finish_reason=finish_reason,
        )

    async def cancelled(self, reading: MeterReading) -> None:
        """Write the end of a cancelled generation, by the engine's own count."""
        usage = AttemptUsage(
            prompt_tokens=reading.prompt_tokens,
            cached_tokens=reading.cached_tokens,
            completion_tokens=reading.completion_tokens,
            source="engine",
        )
        await self.ended_early(usage)

    async def ended_early(self, usage: AttemptUsage) -> None:
        """Write the end of a cancelled generation."""
        await self._end(usage, "cancelled", "cancelled")

    async def _end(
        self,
        usage: AttemptUsage,
        outcome: Literal["succeeded", "cancelled"],
        finish_reason: str,
        stop_reason: str | None = None,
        timings: AttemptTimings | None = None,
        decision: Decision | None = None,
    ) -> bool:
        """Write the rest and the attempt's end; a chunk that may not be written goes first."""
        if self._unsure is not None:
            await self._append()
        return await journal.finish_attempt(
            self._db,
            organisation_id=self._organisation,
            generation_key=self._key,
            epoch=self._epoch,
            seq=self._sequence,
            token_ids=self._ids,
            text=self._text,
            usage=usage,
            outcome=outcome,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            timings=timings,
            decisions=[decision] if decision else [],
        )

    async def _append_regularly(self) -> None:
        pause = FIRST_FLUSH_SECONDS
        while True:
            await self._arrived.wait()
            await asyncio.sleep(pause)
            try:
                await self._append()
                pause = FLUSH_SECONDS
            except DatabaseUnavailable:
                pause = OUTAGE_RETRY_SECONDS

    async def _append(self) -> None:
        async with self._writing:
            if self._unsure is None:
                if not self._ids and not self._text:
                    return
                self._unsure = self._ids, self._text
                self._ids, self._text = [], ""
            ids, text = self._unsure
            kept = await journal.append_chunk(
                self._db,
                organisation_id=self._organisation,
                generation_key=self._key,
                epoch=self._epoch,
                seq=self._sequence,
                token_ids=ids,
                text=text,
            )
            if not kept:
                raise Fenced("a newer attempt has taken over this generation")
            self._unsure = None
            self._sequence += 1
            if not self._ids and not self._text:
                self._arrived.clear()
