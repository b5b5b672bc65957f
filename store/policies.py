"""Safety policies: versions of documents, numbered within an organisation (0026).

What a document says is `safety.policy`'s; here it is JSON.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import rfc8785

from store.database import Database
from store.text import jsonb

__all__ = [
    "POLICY_SCREENED_BY",
    "InForce",
    "PolicyVersion",
    "in_force",
    "list_versions",
    "of_key",
    "read_version",
    "set_policy",
    "unset_policy",
]

#: Beside whatever files a task: by which version its texts were screened (as text, 0: none). If
#: another one holds by now, nothing is written and `PolicyChanged` is raised.
POLICY_SCREENED_BY = "set_config('overline.policy', %s, true)"

_COLUMNS = "version, team_id, document, digest, created_at, created_by"


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A version.

    Attributes:
        version: its number in the organisation.
        team_id: whose it is; None: the organisation's, for teams without one of their own.
        document: what it says; None: it takes the scope's policy away.
        created_by: prefix of the key that made it.
    """

    version: int
    team_id: UUID | None
    document: dict[str, Any] | None
    digest: bytes | None
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True)
class InForce:
    """Which version holds for a team; 0: none."""

    organisation_id: UUID
    team_id: UUID
    version: int


async def set_policy(
    db: Database,
    organisation_id: UUID,
    document: Mapping[str, Any],
    *,
    team_id: UUID | None,
    actor: str,
) -> int:
    """Sets the policy of a team, or the organisation's; returns the version that says so.

    An equal document makes no new version. The change is in the audit log.

    Raises:
        NotFound: the organisation has no such team.
    """
    digest = hashlib.sha256(rfc8785.dumps(dict(document))).digest()
    rows = await db.call(
        organisation_id,
        "set_policy",
        "%s, %s, %s, %s",
        (actor, team_id, jsonb(dict(document)), digest),
    )
    return int(rows[0]["f"])


async def unset_policy(
    db: Database, organisation_id: UUID, *, team_id: UUID | None, actor: str
) -> int | None:
    """Takes a scope's own policy away; returns the version that says so, None: there was none.

    Raises:
        NotFound: the organisation has no such team.
    """
    rows = await db.call(organisation_id, "set_policy", "%s, %s, null, null", (actor, team_id))
    made: int | None = rows[0]["f"]
    return made


async def in_force(db: Database, organisation_id: UUID, team_id: UUID) -> InForce:
    """Which version holds for a team now."""
    rows = await db.call(organisation_id, "policy_in_force", "%s", (team_id,))
    return InForce(organisation_id, team_id, int(rows[0]["f"]))


async def of_key(db: Database, key_id: UUID, key_digest: bytes) -> InForce | None:
    """Whose a key is, and which version holds for it; None: the token is nobody's."""
    rows = await db.run_untenanted("select * from policy_of_key(%s, %s)", (key_id, key_digest))
    return InForce(**rows[0]) if rows else None


async def read_version(db: Database, organisation_id: UUID, version: int) -> PolicyVersion | None:
    """One version; it never changes."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from safety_policies where organisation_id = %s and version = %s",
        (organisation_id, version),
    )
    return PolicyVersion(**rows[0]) if rows else None


async def list_versions(
    db: Database, organisation_id: UUID, *, team_id: UUID | None, limit: int = 50
) -> list[PolicyVersion]:
    """A scope's own versions, newest first."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from safety_policies where organisation_id = %s"
        " and team_id is not distinct from %s order by version desc limit %s",
        (organisation_id, team_id, limit),
    )
    return [PolicyVersion(**row) for row in rows]
