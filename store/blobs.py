"""Payloads too large for a history, by the hash of their content."""

from __future__ import annotations

import hashlib
from uuid import UUID

from store.database import Database
from store.errors import NotFound


async def put(db: Database, organisation_id: UUID, data: bytes, content_type: str) -> str:
    """Keeps bytes and returns their SHA-256 as hex. The same bytes are kept once."""
    digest = hashlib.sha256(data).digest()
    await db.run(
        organisation_id,
        "insert into blobs (organisation_id, sha256, content_type, data) values (%s, %s, %s, %s)"
        " on conflict do nothing",
        (organisation_id, digest, content_type, data),
    )
    return digest.hex()


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
