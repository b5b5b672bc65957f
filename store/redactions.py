"""The originals of what was taken out of a task's texts: sealed, and read for their caller only.

The document is `safety.redactions`'; the key is no database's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from store.database import Database

__all__ = ["KeptRedactions", "RedactionShelf", "Sealed", "Seals"]


class Seals(Protocol):
    """Seals bytes; what is sealed opens only for what it was bound to."""

    def seal(self, data: bytes, *bound_to: str) -> tuple[str, bytes]:
        """Return the key's id, and the sealed bytes."""

    def open(self, key_id: str, sealed: bytes, *bound_to: str) -> bytes:
        """Return the bytes."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed document, as the statement that files its task takes it."""

    sealed: bytes
    key_id: str


@dataclass(frozen=True, slots=True)
class KeptRedactions:
    """A task's redactions.

    Attributes:
        document: empty: there are none.
        version: for `keep`; 0: there are none.
    """

    document: dict[str, Any]
    version: int


class RedactionShelf:
    """Keeps redactions of tasks.

    Args:
        db: The database.
        seals: Seals them; asked for when it is needed first.
    """

    def __init__(self, db: Database, seals: Seals) -> None:
        self._db = db
        self._seals = seals

    def seal(self, organisation_id: UUID, task_id: UUID, document: Mapping[str, Any]) -> Sealed:
        """Return a document sealed for one task."""
        data = json.dumps(document, separators=(",", ":")).encode()
        key_id, sealed = self._seals.seal(data, *_bound_to(organisation_id, task_id))
        return Sealed(sealed, key_id)

    async def read(self, organisation_id: UUID, task_id: UUID) -> KeptRedactions:
        """A task's redactions; none when there are none, or they are not kept any more."""
        rows = await self._db.run(
            organisation_id,
            "select version, sealed, key_id from redactions"
            " where organisation_id = %s and task_id = %s",
            (organisation_id, task_id),
        )
        if not rows:
            return KeptRedactions({}, 0)
        data = self._seals.open(
            rows[0]["key_id"], bytes(rows[0]["sealed"]), *_bound_to(organisation_id, task_id)
        )
        return KeptRedactions(json.loads(data), int(rows[0]["version"]))

    async def keep(
        self, organisation_id: UUID, task_id: UUID, document: Mapping[str, Any], *, version: int
    ) -> bool:
        """Keeps a task's redactions.

        Args:
            version: of what was read before; 0: there were none.

        Returns:
            False: somebody else has kept others since; read them, and redact again.
        """
        made = self.seal(organisation_id, task_id, document)
        rows = await self._db.call(
            organisation_id,
            "keep_redactions",
            "%s, %s, %s, %s",
            (task_id, version, made.sealed, made.key_id),
        )
        return bool(rows[0]["f"])


def _bound_to(organisation_id: UUID, task_id: UUID) -> tuple[str, ...]:
    return "redactions", str(organisation_id), str(task_id)
