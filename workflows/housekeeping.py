"""`Housekeeping`: what is kept no longer goes, in small pieces; the ledger's next months are made.

Every piece is one short transaction that is safe to repeat, so a worker that dies on the way loses
nothing and the next one goes on.
"""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from workflows import policies
    from workflows.contracts import HousekeepingInput, Removed, Swept

__all__ = ["Housekeeping"]

# A run that has this much to do leaves the rest to the next one, so that its history stays small.
MOST_PIECES = 300


@workflow.defn(name="Housekeeping")
class Housekeeping:
    """One round of the house."""

    @workflow.run
    async def run(self, asked: HousekeepingInput) -> Removed:
        """Do what is due; dry, only say what would be done."""
        removed = Removed(dry_run=asked.dry_run)
        if not asked.dry_run:
            made = await workflow.execute_activity(
                "housekeeping.partitions",
                result_type=int,
                summary="make the ledger's next months",
                **policies.LOOKUP,
            )
            removed = removed.model_copy(update={"partitions": made})
        pieces = [
            ("housekeeping.content", "remove what streamed of tasks that ended long ago"),
            ("housekeeping.blobs", "remove answers of tools that no task points to"),
            ("housekeeping.payloads", "remove payloads whose history is gone"),
        ]
        if asked.files:
            pieces.append(("housekeeping.files", "remove files past their time"))
        for name, summary in pieces:
            removed = await self._swept(name, summary, asked, removed)
        return removed

    async def _swept(
        self, name: str, summary: str, asked: HousekeepingInput, removed: Removed
    ) -> Removed:
        after = ""
        for _ in range(MOST_PIECES):
            swept: Swept = await workflow.execute_activity(
                name,
                asked.model_copy(update={"after": after}),
                result_type=Swept,
                summary=summary,
                **policies.SWEEP,
            )
            removed = removed.plus(swept.removed)
            if swept.after is None:
                break
            after = swept.after
        return removed
