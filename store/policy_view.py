"""Safety policies as a process last knew them: no statement a call.

Whoever files something says by which version it was screened (`POLICY_SCREENED_BY`); if another
one holds by then nothing is filed, `PolicyChanged` is raised, and the view is told to look again.
So an old view costs a round trip once, and is never acted upon.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

from store import policies
from store.database import Database
from store.errors import NotFound

__all__ = ["Held", "PolicyView"]

T = TypeVar("T")

# Keys, teams and documents kept; those beyond are asked for again.
_MOST = 10_000
_MOST_DOCUMENTS = 256


@dataclass(frozen=True, slots=True)
class Held(Generic[T]):
    """The policy that holds for a team: its version, and what was made of its document.

    Attributes:
        version: 0: none holds, and `policy` is None.
    """

    organisation_id: UUID
    team_id: UUID
    version: int
    policy: T | None


class PolicyView(Generic[T]):
    """A process's view of the policies.

    Args:
        db: The database.
        read: Makes of a document what is acted upon.
    """

    def __init__(self, db: Database, read: Callable[[Mapping[str, Any]], T]) -> None:
        self._db = db
        self._read = read
        self._of_keys: OrderedDict[UUID, Held[T]] = OrderedDict()
        self._of_teams: OrderedDict[tuple[UUID, UUID], Held[T]] = OrderedDict()
        self._documents: OrderedDict[tuple[UUID, int], T] = OrderedDict()

    def of_key(self, key_id: UUID) -> Held[T] | None:
        """Return what was last known to hold for a key; None: nothing is known, suppose none."""
        return self._of_keys.get(key_id)

    async def look_at_key(self, key_id: UUID, key_digest: bytes) -> Held[T] | None:
        """Return what holds for a key now; None: the token is nobody's.

        Raises:
            DatabaseUnavailable: Not known.
        """
        found = await policies.of_key(self._db, key_id, key_digest)
        if found is None:
            self._of_keys.pop(key_id, None)
            return None
        held = await self._held(found)
        _put(self._of_keys, key_id, held, _MOST)
        return held

    def of_team(self, organisation_id: UUID, team_id: UUID) -> Held[T] | None:
        """Return what was last known to hold for a team; None: nothing is known, suppose none."""
        return self._of_teams.get((organisation_id, team_id))

    async def look_at_team(self, organisation_id: UUID, team_id: UUID) -> Held[T]:
        """Return what holds for a team now.

        Raises:
            DatabaseUnavailable: Not known.
        """
        held = await self._held(await policies.in_force(self._db, organisation_id, team_id))
        _put(self._of_teams, (organisation_id, team_id), held, _MOST)
        return held

    async def version(self, organisation_id: UUID, version: int) -> T:
        """Return what was made of a version's document: one statement, once.

        Raises:
            NotFound: There is no such version, or it says nothing.
            DatabaseUnavailable: Not known.
        """
        key = (organisation_id, version)
        known = self._documents.get(key)
        if known is None:
            row = await policies.read_version(self._db, organisation_id, version)
            if row is None or row.document is None:
                raise NotFound("no such safety policy")
            known = self._read(row.document)
            _put(self._documents, key, known, _MOST_DOCUMENTS)
        return known

    async def _held(self, found: policies.InForce) -> Held[T]:
        policy = await self.version(found.organisation_id, found.version) if found.version else None
        return Held(found.organisation_id, found.team_id, found.version, policy)


K = TypeVar("K")
V = TypeVar("V")


def _put(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)
