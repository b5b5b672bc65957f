"""Collections and what is found in them (pgvector).

Documents are put into them by `store.documents`; its names are exported here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from store.database import Database
from store.documents import (
    Document,
    StagedChunk,
    document_text,
    fail_document,
    get_document,
    publish,
    put_document,
    stage_chunks,
    staged_chunks,
    store_embeddings,
    vector_text,
)
from store.text import storable

__all__ = [
    "Collection",
    "Document",
    "Hit",
    "StagedChunk",
    "any_untrusted",
    "create_collection",
    "document_text",
    "fail_document",
    "get_collection_by_name_or_id",
    "get_document",
    "list_collections",
    "publish",
    "put_document",
    "search",
    "stage_chunks",
    "staged_chunks",
    "store_embeddings",
]


@dataclass(frozen=True, slots=True)
class Collection:
    """Documents that are searched together. `revision` grows whenever a document changes.

    Attributes:
        untrusted: what is in it was written by strangers.
    """

    id: UUID
    name: str
    description: str
    embedding_model: str
    dimensions: int
    revision: int
    untrusted: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found; `score` is the cosine similarity, at most 1."""

    chunk_id: UUID
    document_id: UUID
    collection_id: UUID
    external_id: str
    title: str
    ordinal: int
    text: str
    score: float


_COLLECTION = (
    "collection_id as id, name, description, embedding_model, dimensions, revision, untrusted,"
    " created_at"
)


async def create_collection(
    db: Database,
    organisation_id: UUID,
    *,
    name: str,
    description: str = "",
    embedding_model: str,
    dimensions: int,
    untrusted: bool = False,
) -> Collection | None:
    """Makes a collection; None when the organisation has one of that name."""
    rows = await db.run(
        organisation_id,
        "insert into collections (organisation_id, name, description, embedding_model, dimensions,"
        " untrusted) values (%s, %s, %s, %s, %s, %s) on conflict do nothing"
        f" returning {_COLLECTION}",
        (
            organisation_id,
            storable(name),
            storable(description),
            embedding_model,
            dimensions,
            untrusted,
        ),
    )
    return Collection(**rows[0]) if rows else None


async def any_untrusted(
    db: Database, organisation_id: UUID, collection_ids: Sequence[UUID]
) -> bool:
    """Whether one of these collections has what strangers wrote."""
    rows = await db.run(
        organisation_id,
        "select exists (select from collections where organisation_id = %s"
        " and collection_id = any (%s) and untrusted) as any",
        (organisation_id, list(collection_ids)),
    )
    return bool(rows[0]["any"])


async def get_collection_by_name_or_id(
    db: Database, organisation_id: UUID, name_or_id: str
) -> Collection | None:
    """A collection by its name or, failing that, its id."""
    try:
        collection_id = UUID(name_or_id)
    except ValueError:
        collection_id = None
    rows = await db.run(
        organisation_id,
        f"select {_COLLECTION} from collections where organisation_id = %s"
        " and (name = %s or collection_id = %s) order by name = %s desc limit 1",
        (organisation_id, storable(name_or_id), collection_id, storable(name_or_id)),
    )
    return Collection(**rows[0]) if rows else None


async def list_collections(db: Database, organisation_id: UUID) -> list[Collection]:
    """All collections of an organisation, by name."""
    rows = await db.run(
        organisation_id,
        f"select {_COLLECTION} from collections where organisation_id = %s order by name",
        (organisation_id,),
    )
    return [Collection(**row) for row in rows]


async def search(
    db: Database,
    organisation_id: UUID,
    collection_ids: Sequence[UUID],
    embedding: Sequence[float],
    k: int,
) -> list[Hit]:
    """The `k` passages nearest to an embedding, best first.

    Exact: every passage of the collections is compared. An approximate index shared by all
    tenants would silently miss most of a small tenant's passages; `+ 0` keeps one from being
    used should it exist.
    """
    rows = await db.run(
        organisation_id,
        "select c.chunk_id, c.document_id, c.collection_id, d.external_id, d.title, c.ordinal,"
        " c.text, 1 - (c.embedding <=> %(q)s::vector) as score"
        " from chunks c join documents d on d.organisation_id = c.organisation_id"
        " and d.document_id = c.document_id and d.current_version = c.version"
        " where c.organisation_id = %(org)s and c.collection_id = any (%(collections)s::uuid[])"
        " and c.embedding is not null"
        " order by (c.embedding <=> %(q)s::vector) + 0, c.chunk_id limit %(k)s",
        {
            "q": vector_text(embedding),
            "org": organisation_id,
            "collections": list(collection_ids),
            "k": k,
        },
    )
    return [Hit(**row) for row in rows]
