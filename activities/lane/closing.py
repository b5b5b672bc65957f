"""The end of a call: written once, whatever becomes of who waits for it and of Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

from activities.lane.journal import LaneJournal
from store import calls
from store.database import Database
from store.errors import DatabaseUnavailable
from workflows.contracts import TaskError
from workflows.errors import EngineDown, OverlineError

__all__ = ["Closing", "failure_document", "unanswered"]

OUTAGE_RETRY_S = 0.5
# How long the end of a call waits for Postgres before its client is told so.
OUTAGE_PATIENCE_S = 60.0


def unanswered(code: str) -> EngineDown:
    """Return what is told of an engine that gave no answer, for a reason in a word."""
    return EngineDown(f"the model's engine did not answer ({code})")


def failure_document(told: OverlineError) -> dict[str, Any]:
    """Return what is filed of a call that has no answer, in the form of a task's error."""
    error = TaskError(code=told.code, message=told.message, step=1, layer="generation.generate")
    return error.model_dump(mode="json")


class Closing:
    """How one call is closed.

    Attributes:
        over: Set when the call is closed, or could not be.
    """

    def __init__(
        self,
        db: Database,
        organisation_id: UUID,
        task_id: UUID,
        trace_id: str | None,
    ) -> None:
        """Take whose end it is: a task's, made in a trace."""
        self.over = asyncio.Event()
        self._db = db
        self._organisation_id = organisation_id
        self._task_id = task_id
        self._trace_id = trace_id
        self._under_way: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """Whether the call is being closed, or is."""
        return self._under_way is not None

    async def close(
        self,
        journal: LaneJournal,
        ending: Callable[[], calls.Ending],
        ended: Callable[[calls.Closed | None], None],
    ) -> None:
        """Close the call, or wait until it is, as who began to close it said.

        Args:
            journal: Where its words were written until now.
            ending: Says how it ended, once nothing more is written to the journal.
            ended: Is told what was settled; None where it could not be written down.

        Raises:
            DatabaseUnavailable: Postgres was away for longer than a client waits.
            Fenced: Somebody else has taken the call over.
        """
        if self._under_way is None:
            self._under_way = asyncio.create_task(self._close(journal, ending, ended))
        await asyncio.shield(self._under_way)

    async def _close(
        self,
        journal: LaneJournal,
        ending: Callable[[], calls.Ending],
        ended: Callable[[calls.Closed | None], None],
    ) -> None:
        closed: calls.Closed | None = None
        try:
            await journal.stop()
            waited = 0.0
            while closed is None:
                try:
                    await journal.settle_doubt()
                    closed = await calls.close_call(
                        self._db, self._organisation_id, self._task_id, ending(), self._trace_id
                    )
                except DatabaseUnavailable:
                    # Until it is written nothing is over: should this process give up, the call's
                    # workflow finds the journal and ends it.
                    if waited >= OUTAGE_PATIENCE_S:
                        raise
                    waited += OUTAGE_RETRY_S
                    await asyncio.sleep(OUTAGE_RETRY_S)
        finally:
            self.over.set()
            ended(closed)
