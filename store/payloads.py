"""Payloads of histories that are too large for them: ciphertext, by the hash of its bytes.

Kept for as long as they are read, and then for as long as Temporal has the workflow they are bound
to. The housekeeping looks after that.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from uuid import UUID

from store.database import Database

__all__ = ["CONTENT_TYPE", "PayloadShelf"]

CONTENT_TYPE = "application/vnd.temporal.payload"
# Workflows whose organisation is remembered.
_REMEMBERED = 4_096


class PayloadShelf:
    """Puts payloads into `blobs` and takes them out again."""

    def __init__(self, db: Database, *, keep: timedelta, read_only: bool = False) -> None:
        """Prepare.

        Args:
            db: Where they are.
            keep: How long one stays that nobody reads, whatever Temporal has.
            read_only: Reading does not count as use: for roles that may not write.
        """
        self._db = db
        self._keep = keep
        self._read_only = read_only
        self._organisations: dict[str, UUID] = {}

    async def put(self, workflow_id: str, data: bytes) -> tuple[UUID, str]:
        """Keeps bytes of a workflow; returns its organisation and their SHA-256 as hex."""
        digest = hashlib.sha256(data).digest()
        organisation_id = await self._organisation_of(workflow_id)
        await self._db.run(
            organisation_id,
            "insert into blobs (organisation_id, sha256, content_type, data, workflow_id,"
            " keep_until) values (%s, %s, %s, %s, %s, now() + %s) on conflict do nothing",
            (organisation_id, digest, CONTENT_TYPE, data, workflow_id or "-", self._keep),
        )
        return organisation_id, digest.hex()

    async def get(self, organisation_id: UUID, sha256: str) -> bytes | None:
        """The bytes; None when they are not there.

        Raises:
            ValueError: `sha256` is not hexadecimal.
        """
        digest = bytes.fromhex(sha256)
        rows = await self._db.run(
            organisation_id,
            "select data, keep_until < now() + %s as stale from blobs"
            " where organisation_id = %s and sha256 = %s and workflow_id is not null",
            # Noted once a day, and not at every replay.
            (self._keep - timedelta(days=1), organisation_id, digest),
        )
        if not rows:
            return None
        if rows[0]["stale"] and not self._read_only:
            await self._db.run(
                organisation_id,
                "update blobs set keep_until = greatest(keep_until, now() + %s)"
                " where organisation_id = %s and sha256 = %s",
                (self._keep, organisation_id, digest),
            )
        return bytes(rows[0]["data"])

    async def _organisation_of(self, workflow_id: str) -> UUID:
        known = self._organisations.get(workflow_id)
        if known is None:
            rows = await self._db.run_untenanted(
                "select organisation_of_workflow(%s) as id", (workflow_id,)
            )
            known = UUID(str(rows[0]["id"]))
            if len(self._organisations) >= _REMEMBERED:
                self._organisations.clear()
            self._organisations[workflow_id] = known
        return known
