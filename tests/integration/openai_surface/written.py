"""All that a stack has written anywhere, and that some words are nowhere in it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
from psycopg import sql

from tests.integration.running import RunningStack

__all__ = ["assert_nowhere"]


def everything(stack: RunningStack) -> Iterator[tuple[str, bytes]]:
    """All that the stack has written: rows, pages, write-ahead log, histories, logs."""
    with psycopg.connect(stack.admin_url, autocommit=True) as connection:
        connection.execute("checkpoint")
        for (table,) in connection.execute(
            "select relname from pg_class"
            " where relkind = 'r' and relnamespace = 'public'::regnamespace"
        ).fetchall():
            query = sql.SQL("select coalesce(string_agg(t::text, chr(10)), '') from {} t")
            row = connection.execute(query.format(sql.Identifier(table))).fetchone()
            assert row is not None
            yield f"table {table}", row[0].encode()
    skipped = {"engine", "models", "backends"}
    for path in stack.folder.rglob("*"):
        if path.is_file() and not skipped & set(path.relative_to(stack.folder).parts):
            yield str(path), path.read_bytes()


async def assert_nowhere(stack: RunningStack, *secrets: str, control: str) -> None:
    """None of the secrets was written anywhere; what was kept is found by the same search."""

    def search() -> tuple[dict[str, str], bool]:
        leaks, seen = {}, False
        for name, data in everything(stack):
            seen = seen or control.encode() in data
            for secret in secrets:
                if secret.encode() in data or secret.partition("@")[0].encode() in data:
                    leaks[name] = secret
        return leaks, seen

    leaks, seen = await asyncio.to_thread(search)
    assert leaks == {}
    assert seen
