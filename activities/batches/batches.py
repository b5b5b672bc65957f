"""What a batch's workflow does: look at the lines, have some made, write what came of them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from temporalio import activity
from uuid_utils.compat import uuid7

from activities.batches.results import write_results
from activities.batches.slices import Slice
from activities.batches.surface import Surface
from activities.batches.validation import Checked, Checker
from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.heartbeats import heartbeats
from activities.lane.lane import FastLane
from observability.metrics import record_batch
from store import batch_lines, batches, files
from store.batches import BatchWork
from workflows.contracts.batch import (
    BatchClass,
    BatchOutcome,
    BatchStep,
    FinishBatch,
    LinesDone,
    LinesInput,
    Validated,
)
from workflows.errors import NotFound

__all__ = ["Batches"]

#: Lines filed by one statement.
_FILED_AT_ONCE = 2_000


class Batches:
    """The activities of batches.

    Args:
        deps: What a worker's activities share.
        lane: Makes the lines' calls.
        surface: What lines say, and how they are answered.
    """

    def __init__(self, deps: Dependencies, lane: FastLane, surface: Surface) -> None:
        self._deps = deps
        self._lane = lane
        self._surface = surface

    @activity.defn(name="batches.validate")
    @typed_failures
    async def validate(self, asked: BatchStep) -> Validated:
        """Look at every line, and file them all; or note what is wrong with them.

        Of a batch whose lines are on file the workflow begins anew: they are as they were filed.
        """
        db, organisation = self._deps.db, asked.tenant.organisation_id
        work = await self._work(asked)
        if work.ended or work.status == "cancelling":
            return Validated()
        if work.status != "validating":
            return _validated(await batch_lines.resume_lines(db, organisation, asked.batch_id))
        async with heartbeats():
            checked = await self._checked(asked, work)
            if checked.errors:
                await self._end(asked, work, checked.errors)
                return Validated()
            for first in range(0, len(checked.lines), _FILED_AT_ONCE):
                await batch_lines.file_lines(
                    db, organisation, asked.batch_id, checked.lines[first : first + _FILED_AT_ONCE]
                )
            await batches.begin_batch(db, organisation, asked.batch_id, len(checked.lines))
            # As they are on file: another attempt may have filed some when the models were others.
            return _validated(await batch_lines.waiting_lines(db, organisation, asked.batch_id))

    async def _checked(self, asked: BatchStep, work: BatchWork) -> Checked:
        settings = self._deps.settings
        checker = Checker(
            self._surface,
            await self._deps.catalogue.read(),
            endpoint=work.endpoint,
            most_bytes=settings.max_request_bytes,
        )
        parts = files.parts_of(self._deps.db, asked.tenant.organisation_id, work.input_file_id)
        async with contextlib.aclosing(parts):
            async for part in parts:
                await checker.take(part)
                if checker.gives_up:
                    break
        found = checker.checked
        if not found.lines and not found.errors:
            found.errors.append(
                {"code": "empty_file", "message": "The file has no line.", "param": "input_file_id"}
            )
        return found

    @activity.defn(name="batches.lines")
    @typed_failures
    async def lines(self, asked: LinesInput) -> LinesDone:
        """Work on lines for some seconds, one after the other."""
        work = await self._work(asked)
        if work.ended:
            return LinesDone(over=True)
        slice_ = Slice(self._deps, self._lane, self._surface, asked, work, asyncio.Event())
        async with heartbeats():
            running = asyncio.create_task(slice_.run())
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                if activity.is_worker_shutdown():
                    # The call it is at is carried to its end elsewhere, and found there.
                    running.cancel()
                    raise
                # Cancelled, or taken for dead: the line it is at is made to its end.
                slice_.stopping.set()
                return await running

    @activity.defn(name="batches.finish")
    @typed_failures
    async def finish(self, asked: FinishBatch) -> BatchOutcome:
        """Write the files of a batch, and end it. Idempotent."""
        work = await self._work(asked)
        errors: list[dict[str, Any]] | None = None
        if asked.error is not None:
            errors = [{"code": asked.error.code, "message": asked.error.message}]
        async with heartbeats():
            if asked.cancelled:
                await batches.cancel_batch(
                    self._deps.db, asked.tenant.organisation_id, asked.batch_id
                )
            if not work.ended:
                await self._end(asked, work, errors)
        ended = await batches.get_batch(self._deps.db, asked.tenant.organisation_id, asked.batch_id)
        assert ended is not None
        return BatchOutcome.model_validate(
            {
                "batch_id": asked.batch_id,
                "status": ended.status,
                "answered": ended.completed,
                "failed": ended.failed,
            }
        )

    async def _end(
        self, asked: BatchStep, work: BatchWork, errors: list[dict[str, Any]] | None
    ) -> None:
        db, organisation = self._deps.db, asked.tenant.organisation_id
        ending = await batches.begin_end(
            db,
            organisation,
            asked.batch_id,
            errors=errors,
            output_file_id=uuid7(),
            error_file_id=uuid7(),
        )
        if ending is None:
            return
        await write_results(
            db,
            organisation,
            asked.batch_id,
            work,
            output_file_id=ending.output_file_id,
            error_file_id=ending.error_file_id,
        )
        if await batches.end_batch(db, organisation, asked.batch_id, ending.outcome):
            record_batch(ending.outcome)

    async def _work(self, asked: BatchStep) -> BatchWork:
        work = await batches.work_of(self._deps.db, asked.tenant.organisation_id, asked.batch_id)
        if work is None:
            raise NotFound("there is no such batch")
        return work


def _validated(waiting: dict[str, int]) -> Validated:
    return Validated(
        total=sum(waiting.values()),
        classes=tuple(BatchClass(name=name, lines=lines) for name, lines in waiting.items()),
    )
