"""Tasks filed, and with them what screening has to say about them: in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from store.database import Database, Params, Row
from store.decisions import Decision, documents
from store.redactions import Sealed

__all__ = ["TaskScreening", "filed"]


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


async def filed(
    db: Database,
    organisation_id: UUID,
    function: str,
    values: Sequence[Any],
    *beside: tuple[str, Params],
) -> Row:
    """Files a task in one round trip, with the statements that are filed with it; returns its row.

    Args:
        function: the SQL function that files it; its first parameter is the organisation.
        values: its other arguments.
    """
    arguments = ", ".join(["%s"] * len(values))
    if not beside:
        return (await db.call(organisation_id, function, arguments, values))[0]
    first = (f"select * from {function}(%s, {arguments})", (organisation_id, *values))
    return (await db.run_many(organisation_id, [first, *beside]))[0][0]
