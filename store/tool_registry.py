"""Registered tools. A definition is found by its digest: what was registered cannot change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from store.database import Database
from store.text import jsonb, storable


@dataclass(frozen=True, slots=True)
class ToolRecord:
    """One definition of a registered tool.

    Attributes:
        digest: SHA-256 of name, description, schema and target, canonical JSON.
        source: the registration it came with.
        target: how it is called, by kind; secrets by name only.
        approval: which calls wait for a person, as a tool use says it.
        removed_at: since when it may not be called any more.
    """

    name: str
    digest: str
    source: str
    kind: str
    description: str
    input_schema: dict[str, Any]
    target: dict[str, Any]
    approval: Any
    timeout_seconds: int
    max_attempts: int
    created_at: datetime | None = None
    removed_at: datetime | None = None


_COLUMNS = (
    "name, digest, source, kind, description, input_schema, target, approval, timeout_seconds,"
    " max_attempts, created_at, removed_at"
)


async def register(
    db: Database, organisation_id: UUID, source: str, tools: Sequence[ToolRecord]
) -> None:
    """Makes these the tools of a registration; those it had besides can be called no more."""
    async with db.transaction(organisation_id) as connection:
        # Two registrations of one name, one after the other.
        await connection.execute(
            "select pg_advisory_xact_lock(hashtextextended(%s, 0))",
            (f"tools {organisation_id} {source}",),
        )
        await connection.execute(
            "update tools set removed_at = now()"
            " where organisation_id = %s and source = %s and removed_at is null",
            (organisation_id, source),
        )
        for tool in tools:
            await connection.execute(
                "insert into tools (organisation_id, name, digest, source, kind, description,"
                " input_schema, target, approval, timeout_seconds, max_attempts)"
                " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
                " on conflict (organisation_id, name, digest) do update set removed_at = null,"
                " approval = excluded.approval, timeout_seconds = excluded.timeout_seconds,"
                " max_attempts = excluded.max_attempts",
                (
                    organisation_id,
                    tool.name,
                    tool.digest,
                    source,
                    tool.kind,
                    storable(tool.description),
                    jsonb(tool.input_schema),
                    jsonb(tool.target),
                    jsonb(tool.approval),
                    tool.timeout_seconds,
                    tool.max_attempts,
                ),
            )


async def pin(db: Database, organisation_id: UUID, tool: ToolRecord) -> None:
    """Keeps the definition of what is never called by its name alone, once."""
    await db.run(
        organisation_id,
        "insert into tools (organisation_id, name, digest, source, kind, description,"
        " input_schema, target, approval, timeout_seconds, max_attempts, removed_at)"
        " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, now()) on conflict do nothing",
        (
            organisation_id,
            tool.name,
            tool.digest,
            tool.source,
            tool.kind,
            storable(tool.description),
            jsonb(tool.input_schema),
            jsonb(tool.target),
            jsonb(tool.approval),
            tool.timeout_seconds,
            tool.max_attempts,
        ),
    )


async def remove(db: Database, organisation_id: UUID, source: str) -> int:
    """Ends a registration; returns how many tools it had."""
    rows = await db.run(
        organisation_id,
        "update tools set removed_at = now()"
        " where organisation_id = %s and source = %s and removed_at is null returning name",
        (organisation_id, source),
    )
    return len(rows)


async def list_tools(db: Database, organisation_id: UUID) -> list[ToolRecord]:
    """The tools that can be called, by name."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from tools where organisation_id = %s and removed_at is null"
        " order by name",
        (organisation_id,),
    )
    return [ToolRecord(**row) for row in rows]


async def current(
    db: Database, organisation_id: UUID, names: Iterable[str]
) -> dict[str, ToolRecord]:
    """Those of some tools that can be called, by name."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from tools"
        " where organisation_id = %s and name = any (%s) and removed_at is null",
        (organisation_id, list(names)),
    )
    return {row["name"]: ToolRecord(**row) for row in rows}


async def definition(
    db: Database, organisation_id: UUID, name: str, digest: str
) -> ToolRecord | None:
    """A definition, whether it can be called or not."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from tools where organisation_id = %s and name = %s and digest = %s",
        (organisation_id, name, digest),
    )
    return ToolRecord(**rows[0]) if rows else None
