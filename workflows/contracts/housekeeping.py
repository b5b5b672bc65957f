"""Keeping the house, across the border."""

from __future__ import annotations

from pydantic import Field

from workflows.contracts.base import Wire

__all__ = ["HOUSEKEEPING_ID", "HousekeepingInput", "Removed", "Swept"]

#: Of the schedule, and the beginning of the ids of the workflows it starts.
HOUSEKEEPING_ID = "housekeeping"


class HousekeepingInput(Wire):
    """Input of `Housekeeping` and of each of its pieces."""

    dry_run: bool = False
    files: bool = Field(default=False, description="Remove files past their time, too.")
    after: str = Field(default="", description="Where the piece before this one stopped.")


class Removed(Wire):
    """What was removed; or, dry, what would be."""

    dry_run: bool = False
    partitions: int = Field(default=0, description="Months of the ledger that were made.")
    tasks: int = Field(default=0, description="Tasks whose journal, events and prompts went.")
    chunks: int = Field(default=0, description="Journal chunks of theirs.")
    events: int = Field(default=0, description="Events of theirs.")
    prompts: int = Field(default=0, description="Prompts of theirs, in token ids.")
    blobs: int = Field(default=0, description="Answers of tools that no task points to.")
    payloads: int = Field(default=0, description="Payloads whose history is gone.")
    files: int = Field(default=0, description="Files past their time.")
    bytes: int = Field(default=0, description="Bytes of blobs, payloads and files.")

    def plus(self, other: Removed) -> Removed:
        """Return both together."""
        own = self.model_dump(exclude={"dry_run"})
        more = other.model_dump(exclude={"dry_run"})
        return Removed(dry_run=self.dry_run, **{name: own[name] + more[name] for name in own})


class Swept(Wire):
    """What one piece did."""

    removed: Removed
    after: str | None = Field(default=None, description="Where to go on; none: it is all done.")
