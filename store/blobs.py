"""Payloads too large for a history, by the hash of their content."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from uuid import UUID

from store.database import Database
from store.errors import NotFound

# The same bytes may be past their time just now: what is put again is kept again.
_PUT = """
insert into blobs as b (organisation_id, sha256, content_type, data, keep_until)
values (%(org)s, %(sha)s, %(type)s, %(data)s, coalesce(now() + %(keep)s, 'infinity'))
on conflict (organisation_id, sha256) do update
   set keep_until = greatest(b.keep_until, excluded.keep_until)
"""


async def put(
    db: Database,
    organisation_id: UUID,
    data: bytes,
    content_type: str,
    *,
    keep: timedelta | None = None,
) -> str:
    """Keeps bytes and returns their SHA-256 as hex. The same bytes are kept once.

    Args:
        keep: how long, at least; None for ever.
    """
    digest = hashlib.sha256(data).digest()
    await db.run(
        organisation_id,
        _PUT,
        {
            "org": organisation_id,
            "sha": digest,
            "type": content_type,
            "data": data,
            "keep": keep,
        },
    )
    return digest.hex()


async def put_for_task(
    db: Database, organisation_id: UUID, task_id: UUID, data: bytes, content_type: str
) -> str:
    """Keeps bytes that a task points to, for as long as what streamed of it is kept.

    Returns:
        Their SHA-256 as hex.
    """
    digest = hashlib.sha256(data).digest()
    await db.run_many(
        organisation_id,
        [
            (
                _PUT,
                {
                    "org": organisation_id,
                    "sha": digest,
                    "type": content_type,
                    "data": data,
                    "keep": timedelta(days=1),
                },
            ),
            (
                "insert into blob_uses values (%s, %s, %s) on conflict do nothing",
                (organisation_id, digest, task_id),
            ),
        ],
    )
    return digest.hex()


async def of_task(
    db: Database, organisation_id: UUID, task_id: UUID, sha256: str
) -> tuple[bytes, str] | None:
    """Bytes that a task points to, and their content type; None when it does not.

    Raises:
        ValueError: `sha256` is not hexadecimal.
    """
    rows = await db.run(
        organisation_id,
        "select b.data, b.content_type from blob_uses u"
        " join blobs b using (organisation_id, sha256)"
        " where u.organisation_id = %s and u.sha256 = %s and u.task_id = %s",
        (organisation_id, bytes.fromhex(sha256), task_id),
    )
    return (bytes(rows[0]["data"]), rows[0]["content_type"]) if rows else None


async def get(db: Database, organisation_id: UUID, sha256: str) -> bytes:
    """The bytes with that hash.

    Raises:
        NotFound: this organisation keeps no such bytes.
        ValueError: `sha256` is not hexadecimal.
    """
    rows = await db.run(
        organisation_id,
        "select data from blobs where organisation_id = %s and sha256 = %s",
        (organisation_id, bytes.fromhex(sha256)),
    )
    if not rows:
        raise NotFound("no such blob")
    return bytes(rows[0]["data"])
