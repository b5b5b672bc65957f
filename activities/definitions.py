"""The definitions of a task's registered tools, by digest: read once, since they cannot change."""

from __future__ import annotations

from uuid import UUID

from store import tool_registry
from store.database import Database
from store.tool_registry import ToolRecord
from workflows.contracts import Turn
from workflows.errors import NotFound

__all__ = ["Definitions"]

MOST_KEPT = 1_000


class Definitions:
    """Reads definitions and keeps them."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._kept: dict[tuple[UUID, str, str], ToolRecord] = {}

    async def of(self, organisation_id: UUID, turn: Turn) -> dict[str, ToolRecord]:
        """Return the definitions a turn means, by name.

        Raises:
            NotFound: There never was such a definition.
        """
        return {
            name: await self._one(organisation_id, name, digest)
            for name, digest in turn.definitions.items()
        }

    async def _one(self, organisation_id: UUID, name: str, digest: str) -> ToolRecord:
        key = (organisation_id, name, digest)
        if key not in self._kept:
            found = await tool_registry.definition(self._db, organisation_id, name, digest)
            if found is None:
                raise NotFound(f"tool {name!r} was never registered as the task means it")
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = found
        return self._kept[key]
