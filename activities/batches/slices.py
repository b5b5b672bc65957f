"""One slice of a batch: line after line, each made by the fast lane and written down once."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec

from activities.batches.surface import LineCall, Surface
from activities.batches.verdicts import Again, verdict
from activities.dependencies import Dependencies
from activities.lane.kept import KeptCall
from activities.lane.lane import FastLane
from activities.lane.live import LiveCall
from inference.usage import TokenUsage
from observability.metrics import record_batch_line
from store import batch_lines
from store.batch_lines import EndedLine, Postponed, TakenLine
from store.batches import BatchWork
from store.errors import DatabaseUnavailable
from store.identity import Origin
from workflows.contracts.batch import LinesDone, LinesInput
from workflows.contracts.call import CLIENT_GONE, CallSpec
from workflows.errors import Internal, KeyRefused, Unauthenticated

__all__ = ["Slice", "line_id"]

#: Whoever is not a batch waits for an engine's slot no longer than this, and the line it is at.
SECONDS = 5.0
MOST_LINES = 100
#: How the lane says that the call of an idempotency key was ended before it said anything.
_CANCELLED = "earlier_request_cancelled"


def line_id(batch_id: UUID, line: int) -> str:
    """Return the id of a line's request."""
    return f"batch_req_{batch_id.hex}_{line}"


@dataclass
class Slice:
    """Some seconds of one slot.

    Attributes:
        work: The batch, with its key as it is today.
        stopping: Set when no further line is to be begun.
    """

    deps: Dependencies
    lane: FastLane
    surface: Surface
    asked: LinesInput
    work: BatchWork
    stopping: asyncio.Event

    async def run(self) -> LinesDone:
        """Work until the seconds are over, nothing is left, or something is to be waited for.

        Raises:
            DatabaseUnavailable: Postgres is away; the line it was at is taken up again.
        """
        until = time.monotonic() + SECONDS
        answered = failed = 0
        before: EndedLine | Postponed | None = None
        while True:
            taken = await batch_lines.take_line(
                self.deps.db,
                self.asked.tenant.organisation_id,
                self.asked.batch_id,
                deployment_class=self.asked.deployment_class,
                slot=self.asked.slot,
                before=before,
            )
            if not isinstance(taken, TakenLine):
                return LinesDone(
                    answered=answered,
                    failed=failed,
                    over=taken is None,
                    wait_s=taken,
                    reason="" if taken is None else "lines that are tried again",
                )
            before, again = await self._line(taken)
            record_batch_line(before.state if isinstance(before, EndedLine) else "postponed")
            answered += isinstance(before, EndedLine) and before.state == "answered"
            failed += isinstance(before, EndedLine) and before.state == "failed"
            waits = again is not None and again.everybody
            enough = time.monotonic() >= until or answered + failed >= MOST_LINES
            if waits or enough or self.stopping.is_set():
                await self._write(before)
                return LinesDone(
                    answered=answered,
                    failed=failed,
                    wait_s=again.after_s if again is not None and waits else None,
                    reason=again.reason if again is not None and waits else "",
                )

    async def _write(self, done: EndedLine | Postponed) -> None:
        await batch_lines.write_line(
            self.deps.db,
            self.asked.tenant.organisation_id,
            self.asked.batch_id,
            self.asked.slot,
            done,
        )

    async def _line(self, taken: TakenLine) -> tuple[EndedLine | Postponed, Again | None]:
        call: LineCall | None = None
        try:
            call = self.surface.read(self.work.endpoint, json.loads(taken.body)["body"])
            return await self._made(taken, call), None
        except DatabaseUnavailable:
            # Whether it was opened is not known; asked again under the same key, it is made once.
            raise
        except Unauthenticated:
            gone = KeyRefused("The key that submitted this batch is not valid any more.")
            return self._failed(taken, gone, call), None
        except Exception as error:
            if isinstance(error, Internal) and error.facts.get("code") == _CANCELLED:
                return self._cancelled(taken), None
            again = verdict(
                error, tries=taken.tries, strikes=taken.strikes, on_budget=self.work.on_budget
            )
            if again is None:
                return self._failed(taken, error, call), None
            return Postponed(taken.line, again.after_s, again.tried, again.strike), again

    async def _made(self, taken: TakenLine, call: LineCall) -> EndedLine:
        """Make a line's call, or find it made.

        Raises:
            Exception: It failed, or was refused.
        """
        spec = _tagged(call.spec, self.asked.batch_id, self.work.metadata)
        how: dict[str, Any] = {
            "key_id": self.work.key_id,
            "key_digest": self.work.key_digest,
            "origin": Origin(self.work.address, self.work.endpoint),
            # One call however often this line is taken up; the next one only after it has failed.
            "idempotency_key": f"batch:{self.asked.batch_id}:{taken.line}:{taken.tries}",
            "request_digest": f"batch:{self.asked.batch_id}:{taken.line}",
            "once": True,
        }
        if call.texts is not None:
            vectors = await self.lane.embed(spec, call.texts, **how)
            used = TokenUsage(prompt_tokens=vectors.tokens)
            return self._answered(taken, vectors, call.document(vectors), used)
        made = await self._whole(spec, how)
        if isinstance(made, KeptCall) and made.cancelled:
            return self._cancelled(taken, made)
        return self._answered(taken, made, call.document(made), made.used)

    async def _whole(self, spec: CallSpec, how: dict[str, Any]) -> LiveCall | KeptCall:
        """Return a line's call when it is over."""
        made: LiveCall | KeptCall | None = None
        try:
            made = await self.lane.open(spec, cache="auto", **how)
            async for _ in made.pieces():
                pass
        except asyncio.CancelledError as cancelled:
            # The lane cancels whoever reads a call that somebody ends. That is the call's end and
            # not this slice's.
            reader = asyncio.current_task()
            if cancelled.args != (CLIENT_GONE,) or reader is None:
                raise
            reader.uncancel()
            if made is not None:
                self.lane.let_go(made)
            # What it came to is on file in a moment, and found there as after this worker's death.
            return await self._whole(spec, how)
        return made

    def _answered(
        self, taken: TakenLine, made: Any, document: dict[str, Any], used: TokenUsage
    ) -> EndedLine:
        response = {"status_code": 200, "request_id": str(made.task_id), "body": document}
        return self._ended(
            taken, "answered", response=response, used=used, billed_usd=made.billed_usd
        )

    def _cancelled(self, taken: TakenLine, made: KeptCall | None = None) -> EndedLine:
        """Return a line whose call somebody has ended; what was made of it is paid for."""
        error = {
            "code": "request_cancelled",
            "message": "This request was cancelled while it was made.",
        }
        if made is None:
            return self._ended(taken, "failed", error=error)
        return self._ended(taken, "failed", error=error, used=made.used, billed_usd=made.billed_usd)

    def _failed(self, taken: TakenLine, error: Exception, call: LineCall | None) -> EndedLine:
        own_id = line_id(self.asked.batch_id, taken.line)
        told = self.surface.told(error, own_id, call)
        response = {"status_code": told.status, "request_id": own_id, "body": told.document}
        return self._ended(taken, "failed", response=response)

    def _ended(
        self,
        taken: TakenLine,
        state: Literal["answered", "failed"],
        *,
        response: dict[str, Any] | None = None,
        error: dict[str, str] | None = None,
        used: TokenUsage | None = None,
        billed_usd: Decimal = Decimal(0),
    ) -> EndedLine:
        """Return a line as its batch's file will have it."""
        written = {
            "id": line_id(self.asked.batch_id, taken.line),
            "custom_id": taken.custom_id,
            "response": response,
            "error": error,
        }
        used = used or TokenUsage()
        return EndedLine(
            taken.line,
            state,
            msgspec.json.encode(written),
            prompt_tokens=used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            completion_tokens=used.completion_tokens,
            reasoning_tokens=used.reasoning_tokens,
            billed_usd=billed_usd,
        )


def _tagged(spec: CallSpec, batch_id: UUID, metadata: dict[str, str]) -> CallSpec:
    """Return a call with the tags that lead from the ledger to its batch."""
    tags = {**metadata, **spec.tags, "batch": f"batch_{batch_id.hex}"}
    return dataclasses.replace(spec, tags=tags)
