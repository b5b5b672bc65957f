"""Agents: versions of what a task may name instead of saying it. None changes, none goes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from store.database import Database
from store.text import jsonb

__all__ = [
    "Agent",
    "apply_agent",
    "archive_agent",
    "get_agent",
    "list_agents",
    "list_versions",
]


@dataclass(frozen=True, slots=True)
class Agent:
    """One version of an agent.

    Attributes:
        created_by: the API key that applied it.
        archived_at: since when no new task may name it; None while it may.
    """

    name: str
    version: int
    spec: dict[str, Any]
    created_at: datetime
    created_by: UUID
    archived_at: datetime | None


_COLUMNS = ", ".join(Agent.__dataclass_fields__)


async def apply_agent(
    db: Database, organisation_id: UUID, *, name: str, spec: dict[str, Any], created_by: UUID
) -> tuple[int, bool]:
    """Makes the next version of an agent, unless the newest one says the same.

    An archived agent is back afterwards.

    Returns:
        The version that says `spec`, and whether it is new.
    """
    canonical = json.dumps(spec, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    rows = await db.call(
        organisation_id,
        "apply_agent",
        "%s, %s, %s, %s",
        (name, jsonb(spec), hashlib.sha256(canonical.encode()).hexdigest(), created_by),
    )
    return rows[0]["version"], rows[0]["created"]


async def get_agent(
    db: Database, organisation_id: UUID, name: str, version: int | None = None
) -> Agent | None:
    """One version of an agent; without `version` the newest."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from agents where organisation_id = %s and name = %s"
        " and (%s::int is null or version = %s) order by version desc limit 1",
        (organisation_id, name, version, version),
    )
    return Agent(**rows[0]) if rows else None


async def list_agents(db: Database, organisation_id: UUID) -> list[Agent]:
    """The newest version of every agent that is not archived, by name."""
    rows = await db.run(
        organisation_id,
        f"select distinct on (name) {_COLUMNS} from agents"
        " where organisation_id = %s and archived_at is null order by name, version desc",
        (organisation_id,),
    )
    return [Agent(**row) for row in rows]


async def list_versions(db: Database, organisation_id: UUID, name: str) -> list[Agent]:
    """All versions of an agent, newest first; empty when there is no such agent."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from agents where organisation_id = %s and name = %s"
        " order by version desc",
        (organisation_id, name),
    )
    return [Agent(**row) for row in rows]


async def archive_agent(db: Database, organisation_id: UUID, name: str) -> bool:
    """Takes an agent out of use; its versions and the tasks that named it stay.

    Returns:
        False when there is no such agent in use.
    """
    rows = await db.run(
        organisation_id,
        "update agents set archived_at = now() where organisation_id = %s and name = %s"
        " and archived_at is null returning version",
        (organisation_id, name),
    )
    return bool(rows)
