"""The pieces of housekeeping: some rows each, so that nobody waits for them."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from store import files, housekeeping
from store.ledger import ensure_partitions
from workflows.contracts import HousekeepingInput, Removed, Swept
from workflows.errors import OrchestratorDown

__all__ = ["Housekeeper"]

# A task may have thousands of events; a transaction has those of this many tasks.
TASKS = 20
BLOBS = 200
FILES = 10
WORKFLOWS = 50
MONTHS_AHEAD = 3
# A history that is still there is asked for again after this long.
ASKED_AGAIN = timedelta(days=1)


class Housekeeper:
    """Removes what is kept no longer. Rows of the ledger are never among it."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    @activity.defn(name="housekeeping.partitions")
    @typed_failures
    async def partitions(self) -> int:
        """Make the ledger's partitions of the next months."""
        return await ensure_partitions(self._deps.db, months=MONTHS_AHEAD)

    @activity.defn(name="housekeeping.content")
    @typed_failures
    async def content(self, asked: HousekeepingInput) -> Swept:
        """Remove what streamed of some tasks that ended long ago."""
        gone = await housekeeping.remove_content(
            self._deps.db,
            older_than=timedelta(days=self._deps.settings.keep_days),
            limit=TASKS,
            dry=asked.dry_run,
        )
        removed = Removed(
            tasks=gone.tasks, chunks=gone.chunks, events=gone.events, prompts=gone.prompts
        )
        return Swept(removed=removed, after=_more(gone.tasks, TASKS, asked))

    @activity.defn(name="housekeeping.blobs")
    @typed_failures
    async def blobs(self, asked: HousekeepingInput) -> Swept:
        """Remove some blobs that no task points to any more."""
        blobs, size = await housekeeping.remove_blobs(self._deps.db, limit=BLOBS, dry=asked.dry_run)
        return Swept(removed=Removed(blobs=blobs, bytes=size), after=_more(blobs, BLOBS, asked))

    @activity.defn(name="housekeeping.files")
    @typed_failures
    async def files(self, asked: HousekeepingInput) -> Swept:
        """Remove some files past their time; what a batch still reads or writes stays."""
        count, size = await files.remove_files(self._deps.db, limit=FILES, dry=asked.dry_run)
        return Swept(removed=Removed(files=count, bytes=size), after=_more(count, FILES, asked))

    @activity.defn(name="housekeeping.payloads")
    @typed_failures
    async def payloads(self, asked: HousekeepingInput) -> Swept:
        """Remove payloads of workflows that Temporal has no history of any more.

        Raises:
            ApplicationError: Temporal does not say; it is asked again.
        """
        client = activity.client()
        found = await housekeeping.old_payloads(self._deps.db, after=asked.after, limit=WORKFLOWS)
        removed = Removed()
        for old in found:
            gone = not await _has_history(client, old.workflow_id)
            if asked.dry_run:
                blobs, size = (old.blobs, old.bytes) if gone else (0, 0)
            else:
                blobs, size = await housekeeping.end_payloads(
                    self._deps.db, old.workflow_id, keep=None if gone else ASKED_AGAIN
                )
            removed = removed.plus(Removed(payloads=blobs, bytes=size))
        return Swept(
            removed=removed, after=found[-1].workflow_id if len(found) == WORKFLOWS else None
        )


def _more(done: int, most: int, asked: HousekeepingInput) -> str | None:
    """Whether there may be more: a dry piece has counted everything."""
    return None if asked.dry_run or done < most else ""


async def _has_history(client: Client, workflow_id: str) -> bool:
    try:
        await client.get_workflow_handle(workflow_id).describe(rpc_timeout=timedelta(seconds=5))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise OrchestratorDown("Temporal does not say which histories it has") from None
    return True
