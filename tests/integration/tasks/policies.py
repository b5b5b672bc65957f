"""A tenant's safety policy in tests: set past the API, and the traces of what was taken out."""

from __future__ import annotations

from typing import Any, Protocol
from uuid import UUID, uuid4

from store import policies
from store.database import Database
from tests.integration.tasks.books import Books

__all__ = ["PEOPLE", "SetPolicy", "address", "decisions", "left_in_clear", "set_policy"]

PEOPLE = {"id": "people", "kind": "pii", "types": ["EMAIL_ADDRESS"], "action": "redact"}


class SetPolicy(Protocol):
    """Sets the caller's policy; returns its version."""

    async def __call__(self, *rules: dict[str, Any], **fields: Any) -> int:
        """Set it."""


def address() -> str:
    """Return an address that nothing else holds."""
    return f"ada-{uuid4().hex[:12]}@example.com"


async def set_policy(
    admin_url: str, organisation_id: UUID, *rules: dict[str, Any], **fields: Any
) -> int:
    """Set an organisation's policy; returns its version."""
    database = await Database.open(admin_url, max_size=1)
    try:
        document = {"rules": list(rules), **fields}
        return await policies.set_policy(
            database, organisation_id, document, team_id=None, actor="test"
        )
    finally:
        await database.close()


def decisions(books: Books, task_id: str) -> list[tuple[int, str, str, list[str]]]:
    """Return step, place, outcome and rules of every decision about a task, in order."""
    rows = books.rows(
        "select step, place, outcome, findings from safety_decisions where task_id = %s"
        " order by step, decided_at",
        UUID(task_id),
    )
    return [
        (row["step"], row["place"], row["outcome"], [each["rule"] for each in row["findings"]])
        for row in rows
    ]


def left_in_clear(books: Books, word: str) -> list[str]:
    """Return every table that holds a word anywhere in a row."""
    tables = books.rows(
        "select c.oid::regclass::text as name from pg_class c"
        " where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace"
        " and not c.relispartition"
    )
    return [
        str(table["name"])
        for table in tables
        if books.rows(
            f"select 1 as one from {table['name']} x where strpos(x::text, %s) > 0 limit 1", word
        )
    ]
