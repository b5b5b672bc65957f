"""Texts that a person must allow before anybody has them: sealed, for as long as their task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from store import blobs
from store.database import Database
from store.redactions import Seals

__all__ = ["CONTENT_TYPE", "HeldTexts"]

CONTENT_TYPE = "application/vnd.overline.sealed"


class HeldTexts:
    """Keeps them.

    Args:
        db: The database.
        seals: Seals them.
    """

    def __init__(self, db: Database, seals: Seals) -> None:
        self._db = db
        self._seals = seals

    async def keep(
        self, organisation_id: UUID, task_id: UUID, what: str, document: Mapping[str, Any]
    ) -> str:
        """Keeps a text; returns the SHA-256 of the blob it is in, as hex.

        Args:
            what: what it is, for `find`.
            document: the text as `text`, and what else belongs to it.
        """
        data = json.dumps({**document, "what": what}).encode()
        key_id, sealed = self._seals.seal(data, *_bound_to(organisation_id, task_id))
        kept = f"{key_id}\n".encode() + sealed
        return await blobs.put_for_task(self._db, organisation_id, task_id, kept, CONTENT_TYPE)

    async def read(self, organisation_id: UUID, task_id: UUID, sha256: str) -> dict[str, Any]:
        """A text that was kept.

        Raises:
            NotFound: it is not there.
        """
        return self.opened(
            organisation_id, task_id, await blobs.get(self._db, organisation_id, sha256)
        )

    async def find(self, organisation_id: UUID, task_id: UUID, what: str) -> str | None:
        """The blob of a text, by what it is: for whoever kept it and could not say so any more."""
        rows = await self._db.run(
            organisation_id,
            "select encode(b.sha256, 'hex') as sha256, b.data from blob_uses u"
            " join blobs b using (organisation_id, sha256)"
            " where u.organisation_id = %s and u.task_id = %s and b.content_type = %s",
            (organisation_id, task_id, CONTENT_TYPE),
        )
        for row in rows:
            if self.opened(organisation_id, task_id, bytes(row["data"]))["what"] == what:
                return str(row["sha256"])
        return None

    def opened(self, organisation_id: UUID, task_id: UUID, kept: bytes) -> dict[str, Any]:
        """What the bytes of a blob hold."""
        key_id, _, sealed = kept.partition(b"\n")
        data = self._seals.open(key_id.decode(), sealed, *_bound_to(organisation_id, task_id))
        document: dict[str, Any] = json.loads(data)
        return document


def _bound_to(organisation_id: UUID, task_id: UUID) -> tuple[str, ...]:
    return "held", str(organisation_id), str(task_id)
