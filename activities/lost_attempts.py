"""Attempts that ended without a word: their worker, their engine or their connection died.

What they produced was paid for, so it goes into the ledger: by the engine's own durable count,
or, when the engine cannot be asked, by the journal's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from temporalio import activity

from activities.dependencies import Dependencies
from inference.client import TritonClient
from inference.errors import EngineError, EngineUnavailable
from inference.messages import MeterReading
from inference.upstream.estimate import TextCount
from store import journal
from store.journal import AttemptUsage, Begun, UnresolvedAttempt
from workflows.contracts import AccountInput, GenerateInput

__all__ = ["LostAttempts", "reading_after_end"]

# An engine notices within 200 ms that nobody reads a stream; a count taken before is too low.
END_PATIENCE_SECONDS = 5.0
POLL_SECONDS = 0.1
# A request may still be on its way when its engine is first asked about it.
UNKNOWN_POLLS = 3

_CAUSES = {"lost": "engine_lost", "cancelled": "worker_lost", "finished": "result_lost"}


async def reading_after_end(
    client: TritonClient, triton_model: str, request_id: str
) -> MeterReading | None:
    """Read the engine's count of a request once it has ended there.

    Returns:
        The reading, or None if the engine has never heard of the request.

    Raises:
        EngineError: The engine cannot be asked.
    """
    unknown = 0
    for _ in range(int(END_PATIENCE_SECONDS / POLL_SECONDS)):
        reading = await client.meter(triton_model, request_id)
        if reading is None:
            unknown += 1
            if unknown == UNKNOWN_POLLS:
                return None
        elif reading.state != "running":
            return reading
        await asyncio.sleep(POLL_SECONDS)
    return reading


class LostAttempts:
    """Finds out what lost attempts produced, beside the attempt that continues them."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    @contextlib.asynccontextmanager
    async def resolving(self, call: GenerateInput, begun: Begun) -> AsyncIterator[None]:
        """Resolve the lost attempts of a generation while the body runs."""
        if not begun.unresolved:
            yield
            return
        resolving = asyncio.gather(
            *(self._resolve(call, call.chosen.triton_model, lost) for lost in begun.unresolved)
        )
        try:
            yield
        finally:
            # Also when the body was cancelled: settlement follows, and needs the counts.
            await asyncio.shield(resolving)

    async def account(self, call: AccountInput) -> None:
        """Resolve every attempt of a generation that nobody will continue.

        Raises:
            EngineUnavailable: An engine cannot be asked now, and there is time to ask again.
        """
        unresolved = await journal.unresolved_attempts(
            self._deps.db, call.tenant.organisation_id, call.generation_key
        )
        known = await asyncio.gather(
            *(self._resolve(call, call.triton_model, lost) for lost in unresolved)
        )
        if call.patient and not all(known):
            raise EngineUnavailable("an engine cannot be asked what it made", "not_counted")

    async def _estimate(self, call: GenerateInput | AccountInput, lost: UnresolvedAttempt) -> None:
        """Write down what an attempt at an upstream is likely to have used: nobody can be asked.

        The request had been sent, and what came back since the last append to the journal is
        unknown.
        """
        organisation, key = call.tenant.organisation_id, call.generation_key
        staged = await journal.staged_request(self._deps.db, organisation, key)
        written = TextCount()
        written.add(await journal.text_of_attempt(self._deps.db, organisation, key, lost.epoch))
        await journal.resolve_attempt(
            self._deps.db,
            organisation_id=organisation,
            generation_key=key,
            epoch=lost.epoch,
            usage=AttemptUsage(
                prompt_tokens=staged.prompt_tokens,
                cached_tokens=0,
                completion_tokens=written.tokens,
                source="estimate",
            ),
            outcome="lost",
            cause="worker_lost",
        )

    async def _resolve(
        self, call: GenerateInput | AccountInput, triton_model: str, lost: UnresolvedAttempt
    ) -> bool:
        """Write down what an attempt produced; return whether all is known that ever will be."""
        if "://" in lost.replica:
            await self._estimate(call, lost)
            return True
        try:
            reading = await reading_after_end(
                self._deps.engines.at(lost.replica), triton_model, lost.request_id
            )
        except EngineError:
            # Most often it is starting again: the next attempt asks it. If nobody gets to, the
            # call is settled by the journal's count, and the ledger says so.
            return False
        if reading is None and lost.journaled_tokens:
            # An engine that has forgotten what it said cannot be asked about it.
            return True
        if reading is not None and reading.state == "running":
            # Somebody still reads it, a worker that hangs perhaps: too early to count.
            return False
        usage = AttemptUsage(
            prompt_tokens=reading.prompt_tokens if reading else 0,
            cached_tokens=reading.cached_tokens if reading else 0,
            completion_tokens=reading.completion_tokens if reading else 0,
            source="engine",
        )
        await journal.resolve_attempt(
            self._deps.db,
            organisation_id=call.tenant.organisation_id,
            generation_key=call.generation_key,
            epoch=lost.epoch,
            usage=usage,
            outcome="lost",
            cause=_CAUSES.get(reading.state, "worker_lost") if reading else "engine_lost",
        )
        activity.logger.info(
            "accounted for a lost attempt",
            extra={"call_key": call.call_key, "attempt": lost.epoch},
        )
        return True
