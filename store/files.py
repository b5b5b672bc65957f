"""Files that callers keep here: written in pieces as they come, read the same way."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from store.database import Database
from store.errors import Fenced

__all__ = [
    "FilePage",
    "Purpose",
    "StoredFile",
    "add_part",
    "begin_file",
    "delete_file",
    "discard_file",
    "finish_file",
    "get_file",
    "list_files",
    "parts_of",
    "remove_files",
]

Purpose = Literal["batch", "batch_output"]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that is all there.

    Attributes:
        team_id: whose keys read what is in it.
        size: its bytes.
        lines: lines of it that say something.
    """

    file_id: UUID
    team_id: UUID
    filename: str
    purpose: Purpose
    size: int
    lines: int
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class FilePage:
    """A page of files; `more` when others come after it."""

    files: list[StoredFile]
    more: bool


_COLUMNS = "file_id, team_id, filename, purpose, bytes as size, lines, created_at, expires_at"


async def begin_file(
    db: Database,
    organisation_id: UUID,
    *,
    file_id: UUID,
    team_id: UUID,
    key_id: UUID,
    filename: str,
    purpose: Purpose,
    keep: timedelta,
) -> None:
    """Begins a file. Nobody can name it before it is finished. Safe to repeat."""
    await db.run(
        organisation_id,
        "insert into files (organisation_id, file_id, team_id, key_id, filename, purpose,"
        " expires_at) values (%s, %s, %s, %s, %s, %s, now() + %s) on conflict do nothing",
        (organisation_id, file_id, team_id, key_id, filename, purpose, keep),
    )


async def add_part(
    db: Database, organisation_id: UUID, file_id: UUID, part: int, data: bytes
) -> None:
    """Writes one piece; the same one again takes its place.

    Raises:
        Fenced: the file is finished, or gone: who writes has woken up late.
    """
    rows = await db.run(
        organisation_id,
        # Under the row's lock, so that nobody finishes it meanwhile.
        "with own as (select organisation_id, file_id from files where organisation_id = %s"
        " and file_id = %s and state = 'writing' for no key update)"
        " insert into file_parts (organisation_id, file_id, part, data)"
        " select organisation_id, file_id, %s::int, %s::bytea from own"
        " on conflict (organisation_id, file_id, part) do update set data = excluded.data"
        " returning part",
        (organisation_id, file_id, part, data),
    )
    if not rows:
        raise Fenced("the file is not written any more")


async def finish_file(
    db: Database,
    organisation_id: UUID,
    file_id: UUID,
    *,
    size: int,
    lines: int,
    filename: str | None = None,
    keep: timedelta | None = None,
    ready: bool = True,
) -> StoredFile:
    """Says how much is there, and, if it is ready, lets it be named.

    Args:
        filename: another name than it began with.
        keep: how long it is kept from its beginning on, if not as it began with.

    Raises:
        Fenced: it is finished, or gone.
    """
    rows = await db.run(
        organisation_id,
        "update files set state = case when %(ready)s then 'ready' else state end,"
        " bytes = %(size)s, lines = %(lines)s, filename = coalesce(%(name)s, filename),"
        " expires_at = coalesce(created_at + %(keep)s::interval, expires_at)"
        f" where organisation_id = %(org)s and file_id = %(file)s and state = 'writing'"
        f" returning {_COLUMNS}",
        {
            "ready": ready,
            "size": size,
            "lines": lines,
            "name": filename,
            "keep": keep,
            "org": organisation_id,
            "file": file_id,
        },
    )
    if not rows:
        raise Fenced("the file is not written any more")
    return StoredFile(**rows[0])


async def discard_file(db: Database, organisation_id: UUID, file_id: UUID) -> None:
    """Forgets a file that was begun and will not be finished; one that was stays."""
    where = "where organisation_id = %s and file_id = %s"
    writing = f"from files {where} and state = 'writing'"
    place = (organisation_id, file_id)
    await db.run_many(
        organisation_id,
        [
            (f"select {writing} for update", place),
            (f"delete from file_parts {where} and exists (select {writing})", place * 2),
            (f"delete {writing}", place),
        ],
    )


async def get_file(db: Database, organisation_id: UUID, file_id: UUID) -> StoredFile | None:
    """A file, or None when the organisation has no such."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from files where organisation_id = %s and file_id = %s"
        " and state = 'ready' and expires_at > now()",
        (organisation_id, file_id),
    )
    return StoredFile(**rows[0]) if rows else None


async def list_files(
    db: Database,
    organisation_id: UUID,
    *,
    limit: int,
    after: UUID | None,
    purpose: str | None,
    newest_first: bool,
) -> FilePage:
    """A page of an organisation's files. Ids sort by time."""
    order, beyond = ("desc", "<") if newest_first else ("asc", ">")
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from files where organisation_id = %(org)s and state = 'ready'"
        " and expires_at > now() and (%(purpose)s::text is null or purpose = %(purpose)s)"
        f" and (%(after)s::uuid is null or file_id {beyond} %(after)s)"
        f" order by file_id {order} limit %(limit)s",
        {"org": organisation_id, "purpose": purpose, "after": after, "limit": limit + 1},
    )
    return FilePage([StoredFile(**row) for row in rows[:limit]], len(rows) > limit)


async def delete_file(db: Database, organisation_id: UUID, file_id: UUID) -> bool | None:
    """Removes a file. False: a batch still reads it. None: there is no such file."""
    async with db.transaction(organisation_id) as connection:
        found = await connection.execute(
            "select file_id from files"
            " where organisation_id = %s and file_id = %s and state = 'ready' for update",
            (organisation_id, file_id),
        )
        if not found:
            return None
        # Not in the statement that waits for the lock: it would not see who held it until then.
        in_use = await connection.execute(
            "select batch_id from batches"
            " where organisation_id = %s and input_file_id = %s and ended_at is null limit 1",
            (organisation_id, file_id),
        )
        if in_use:
            return False
        for table in ("file_parts", "files"):
            await connection.execute(
                f"delete from {table} where organisation_id = %s and file_id = %s",
                (organisation_id, file_id),
            )
    return True


async def parts_of(
    db: Database, organisation_id: UUID, file_id: UUID
) -> AsyncGenerator[bytes, None]:
    """The pieces of a file in their order, one in memory at a time."""
    part = 0
    while True:
        rows = await db.run(
            organisation_id,
            "select data from file_parts where organisation_id = %s and file_id = %s and part = %s",
            (organisation_id, file_id, part),
        )
        if not rows:
            return
        yield bytes(rows[0]["data"])
        part += 1


async def remove_files(db: Database, *, limit: int, dry: bool = False) -> tuple[int, int]:
    """Removes files past their time; returns how many, and their bytes."""
    rows = await db.run_untenanted("select * from remove_files(%s, %s)", (limit, dry))
    return int(rows[0]["files"]), int(rows[0]["bytes"])
