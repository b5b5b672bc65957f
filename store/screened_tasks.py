"""What screening has to say about a task, filed by the transaction that files the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from store.decisions import Decision, documents
from store.redactions import Sealed

__all__ = ["TaskScreening"]


@dataclass(frozen=True, slots=True)
class TaskScreening:
    """What is filed with a task.

    Attributes:
        decisions: what the policy decided about its texts.
        sealed: what was taken out of them.
    """

    decisions: Sequence[Decision] = ()
    sealed: Sealed | None = None

    def statement(self, organisation_id: UUID, task_id: UUID) -> tuple[str, tuple[Any, ...]]:
        """The statement that files it, behind the one that files the task."""
        sealed = self.sealed
        return (
            "select file_task_screening(%s, %s, %s, %s, %s)",
            (
                organisation_id,
                task_id,
                documents(self.decisions),
                sealed.sealed if sealed else None,
                sealed.key_id if sealed else None,
            ),
        )
