"""Documents: taken in, split into passages, embedded, published.

A new text of a document is staged beside the old one and becomes visible all at once
(`publish`); until then searches find the old version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from store.database import Database
from store.errors import NotFound
from store.text import jsonb, storable


@dataclass(frozen=True, slots=True)
class Document:
    """A document and how far its newest version is.

    Attributes:
        version: the newest text's number, from 1.
        current_version: the version that is searched; 0 before the first.
        status: of the newest version: `pending`, `ready` or `failed`.
        chunk_count: passages of the searched version.
    """

    id: UUID
    collection_id: UUID
    external_id: str
    title: str
    metadata: dict[str, Any]
    version: int
    current_version: int
    status: str
    error: dict[str, Any] | None
    chunk_count: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """A passage that waits for its embedding."""

    ordinal: int
    text: str


_DOCUMENT = (
    "document_id as id, collection_id, external_id, title, metadata, version, current_version,"
    " status, error, chunk_count, created_at, updated_at"
)


async def put_document(
    db: Database,
    organisation_id: UUID,
    collection_id: UUID,
    *,
    external_id: str,
    title: str,
    text: str,
    metadata: Mapping[str, Any] | None = None,
) -> tuple[UUID, bool]:
    """Takes a document in, or a new text of one that is there.

    Returns:
        Its id, and whether anything changed. An unchanged one keeps its version and state.

    Raises:
        NotFound: the organisation has no such collection.
    """
    title, text, facts = storable(title), storable(text), dict(metadata or {})
    digest = hashlib.sha256(json.dumps([title, text, facts], sort_keys=True).encode()).hexdigest()
    rows = await db.run(
        organisation_id,
        "with collection as (select collection_id from collections"
        "   where organisation_id = %(org)s and collection_id = %(collection)s),"
        " put as (insert into documents as d (organisation_id, collection_id, external_id, title,"
        "   text, digest, metadata)"
        "   select %(org)s, collection_id, %(external)s, %(title)s, %(text)s, %(digest)s,"
        "     %(metadata)s from collection"
        "   on conflict (organisation_id, collection_id, external_id) do update"
        "   set title = excluded.title, text = excluded.text, digest = excluded.digest,"
        "     metadata = excluded.metadata, version = d.version + 1, status = 'pending',"
        "     error = null, updated_at = now()"
        "   where d.digest <> excluded.digest returning document_id)"
        " select document_id, true as changed from put"
        " union all select document_id, false from documents"
        "   where organisation_id = %(org)s and collection_id = %(collection)s"
        "     and external_id = %(external)s and not exists (select from put)",
        {
            "org": organisation_id,
            "collection": collection_id,
            "external": storable(external_id),
            "title": title,
            "text": text,
            "digest": digest,
            "metadata": jsonb(facts),
        },
    )
    if not rows:
        raise NotFound("no such collection")
    return rows[0]["document_id"], rows[0]["changed"]


async def get_document(db: Database, organisation_id: UUID, document_id: UUID) -> Document | None:
    """A document's state, without its text."""
    rows = await db.run(
        organisation_id,
        f"select {_DOCUMENT} from documents where organisation_id = %s and document_id = %s",
        (organisation_id, document_id),
    )
    return Document(**rows[0]) if rows else None


async def document_text(db: Database, organisation_id: UUID, document_id: UUID) -> str:
    """The newest text of a document.

    Raises:
        NotFound: the organisation has no such document.
    """
    rows = await db.run(
        organisation_id,
        "select text from documents where organisation_id = %s and document_id = %s",
        (organisation_id, document_id),
    )
    if not rows:
        raise NotFound("no such document")
    return str(rows[0]["text"])


async def stage_chunks(
    db: Database, organisation_id: UUID, document_id: UUID, version: int, chunks: Sequence[str]
) -> None:
    """Keeps the passages of a version, unseen by searches. Repeating it replaces them."""
    key = (organisation_id, document_id, version)
    await db.run_many(
        organisation_id,
        [
            (
                (
                    "delete from chunks where organisation_id = %s and document_id = %s"
                    " and version = %s"
                    " and version <> (select current_version from documents"
                    "   where organisation_id = %s and document_id = %s)"
                ),
                (*key, organisation_id, document_id),
            ),
            (
                (
                    "insert into chunks (organisation_id, document_id, version, ordinal,"
                    " collection_id, text)"
                    " select d.organisation_id, d.document_id, %s, c.ordinal - 1, d.collection_id,"
                    " c.text from documents d, unnest(%s::text[]) with ordinality c (text, ordinal)"
                    " where d.organisation_id = %s and d.document_id = %s on conflict do nothing"
                ),
                (version, [storable(text) for text in chunks], organisation_id, document_id),
            ),
        ],
    )


async def staged_chunks(
    db: Database, organisation_id: UUID, document_id: UUID, version: int, *, start: int, count: int
) -> list[StagedChunk]:
    """Passages of a version in order.

    Args:
        start: first ordinal, from 0.
        count: most passages to return.
    """
    rows = await db.run(
        organisation_id,
        "select ordinal, text from chunks where organisation_id = %s and document_id = %s"
        " and version = %s and ordinal >= %s order by ordinal limit %s",
        (organisation_id, document_id, version, start, count),
    )
    return [StagedChunk(**row) for row in rows]


async def store_embeddings(
    db: Database,
    organisation_id: UUID,
    document_id: UUID,
    version: int,
    embeddings: Mapping[int, Sequence[float]],
) -> None:
    """Keeps embeddings by ordinal, in one statement. Repeating it is harmless."""
    await db.run(
        organisation_id,
        "update chunks c set embedding = e.embedding::vector"
        " from unnest(%s::int[], %s::text[]) as e (ordinal, embedding)"
        " where c.organisation_id = %s and c.document_id = %s and c.version = %s"
        " and c.ordinal = e.ordinal",
        (
            list(embeddings),
            [vector_text(embedding) for embedding in embeddings.values()],
            organisation_id,
            document_id,
            version,
        ),
    )


async def publish(db: Database, organisation_id: UUID, document_id: UUID, version: int) -> bool:
    """Lets searches see this version instead of the one before, and outdates cached answers.

    Returns:
        False when a newer text arrived meanwhile: its own ingestion will publish that.

    Raises:
        NotFound: the organisation has no such document.
    """
    return await _finish(db, organisation_id, document_id, version, "ready", None)


async def fail_document(
    db: Database, organisation_id: UUID, document_id: UUID, version: int, error: dict[str, Any]
) -> bool:
    """Notes that a version could not be ingested; the one before stays searchable."""
    return await _finish(db, organisation_id, document_id, version, "failed", error)


def vector_text(embedding: Sequence[float]) -> str:
    """An embedding in pgvector's text form."""
    return "[" + ",".join(repr(float(value)) for value in embedding) + "]"


async def _finish(
    db: Database,
    organisation_id: UUID,
    document_id: UUID,
    version: int,
    status: str,
    error: dict[str, Any] | None,
) -> bool:
    rows = await db.call(
        organisation_id,
        "finish_document",
        "%s, %s, %s, %s",
        (document_id, version, status, jsonb(error)),
    )
    return bool(rows[0]["f"])
