"""What agents can retrieve from: collections, and the documents in them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from api.authentication import CollectionsCaller, parts_of
from api.json_body import json_body, request_body
from api.openapi import answers
from api.orchestrator import Orchestrator
from api.parts import Parts
from api.problems import ProblemError, invalid, not_found
from store import retrieval
from store.identity import Principal
from workflows import errors
from workflows.contracts import IngestInput, Tenant

__all__ = ["router"]

router = APIRouter(tags=["collections"])

PartsOf = Annotated[Parts, Depends(parts_of)]

#: Names appear in paths and are told apart from ids by their form.
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
_EMBEDDING_MODEL = "all-minilm-l6-v2"
_DIMENSIONS = 384


class NewCollection(BaseModel):
    """A collection to make."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, StringConstraints(pattern=_NAME)] = Field(
        description="Name, unique in the organisation: letters, digits, `.`, `_`, `-`; at most "
        "128 characters."
    )
    description: str = Field(
        default="", max_length=1000, description="What is in it. At most 1,000 characters."
    )
    untrusted: bool = Field(
        default=False,
        description="Strangers wrote what is in it: a tool with the approval `after_untrusted` "
        "waits for a person once such a text was found.",
    )


class Collection(BaseModel):
    """A set of documents that agents can retrieve from."""

    model_config = ConfigDict(frozen=True)

    id: UUID = Field(description="Id of the collection (UUIDv7).")
    name: str = Field(description="Name, unique in the organisation.")
    description: str = Field(description="What is in it.")
    embedding_model: str = Field(description="Model that embeds its chunks and the queries.")
    untrusted: bool = Field(description="Whether strangers wrote what is in it.")
    revision: int = Field(description="Goes up when a document's new text becomes searchable.")
    created_at: datetime = Field(description="When it was made, RFC 3339 in UTC.")


class CollectionList(BaseModel):
    """The organisation's collections."""

    model_config = ConfigDict(frozen=True)

    collections: tuple[Collection, ...] = Field(description="The collections, by name.")


class NewDocument(BaseModel):
    """A document to put into a collection, or a new text for one that is there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    external_id: str = Field(
        min_length=1,
        max_length=1000,
        description="Your id of the document; sending it again replaces the text.",
    )
    title: str = Field(default="", max_length=1000, description="Title. Characters: at most 1,000.")
    text: str = Field(
        min_length=1,
        max_length=1_000_000,
        description="The text, plain or Markdown. At most 1,000,000 characters.",
    )
    metadata: dict[str, str] = Field(
        default_factory=dict, max_length=50, description="Free facts about it, by name."
    )


class Document(BaseModel):
    """A document and how far its ingestion is."""

    model_config = ConfigDict(frozen=True)

    id: UUID = Field(description="Id of the document (UUIDv7).")
    collection_id: UUID = Field(description="Its collection.")
    external_id: str = Field(description="Your id of it.")
    title: str = Field(description="Title.")
    version: int = Field(description="Version of the text, from 1.", ge=1)
    status: Literal["pending", "ready", "failed"] = Field(
        description="`pending` until this version is searchable; an earlier one is until then."
    )
    chunks: int = Field(description="Chunks that can be found.", ge=0)
    updated_at: datetime = Field(description="When text or status changed, RFC 3339 in UTC.")


class DocumentAccepted(Document):
    """A document that was taken in."""

    changed: bool = Field(description="Whether the text differs from the one that was there.")
    workflow_id: str | None = Field(
        description="Workflow that makes it searchable; none when nothing has to be done."
    )


@router.post(
    "/v1/collections",
    status_code=201,
    responses=answers(409, body=True),
    openapi_extra=request_body(NewCollection, {"name": "handbook"}),
    summary="Make a collection",
)
async def create_collection(
    caller: CollectionsCaller,
    parts: PartsOf,
    body: Annotated[NewCollection, Depends(json_body(NewCollection))],
    response: Response,
) -> Collection:
    """Make a collection. A name that is taken is a 409."""
    made = await retrieval.create_collection(
        parts.database,
        caller.organisation_id,
        name=body.name,
        description=body.description,
        embedding_model=_EMBEDDING_MODEL,
        dimensions=_DIMENSIONS,
        untrusted=body.untrusted,
    )
    if made is None:
        raise ProblemError(errors.Conflict, "There is a collection with this name already.")
    response.headers["Location"] = f"/v1/collections/{made.id}"
    return _collection(made)


@router.get("/v1/collections", responses=answers(), summary="List collections")
async def list_collections(caller: CollectionsCaller, parts: PartsOf) -> CollectionList:
    """List the organisation's collections by name."""
    found = await retrieval.list_collections(parts.database, caller.organisation_id)
    return CollectionList(collections=tuple(_collection(item) for item in found))


@router.get("/v1/collections/{collection}", responses=answers(404), summary="Read a collection")
async def get_collection(caller: CollectionsCaller, parts: PartsOf, collection: str) -> Collection:
    """Read a collection by its id or name."""
    return _collection(await _find(parts, caller, collection))


@router.post(
    "/v1/collections/{collection}/documents",
    status_code=202,
    responses=answers(404, body=True)
    | {200: {"description": "Unchanged: there was nothing to do.", "model": DocumentAccepted}},
    openapi_extra=request_body(
        NewDocument, {"external_id": "leave.md", "title": "Leave", "text": "# Leave\n..."}
    ),
    summary="Put a document into a collection",
)
async def put_document(
    caller: CollectionsCaller,
    parts: PartsOf,
    collection: str,
    body: Annotated[NewDocument, Depends(json_body(NewDocument))],
    response: Response,
) -> DocumentAccepted:
    """Take a document in and start the durable workflow that splits, embeds and stores it.

    The same text again does nothing and answers 200, unless its ingestion did not succeed.
    """
    if not body.text.strip():
        raise invalid("/text", "too_short", "There must be something to find.")
    target = await _find(parts, caller, collection)
    organisation = caller.organisation_id
    document_id, changed = await retrieval.put_document(
        parts.database,
        organisation,
        target.id,
        external_id=body.external_id,
        title=body.title,
        text=body.text,
        metadata=dict(body.metadata),
    )
    stored = await retrieval.get_document(parts.database, organisation, document_id)
    if stored is None:
        raise not_found("document")
    workflow_id = None
    # Also when it is unchanged and not searchable yet: the workflow of this version may never
    # have been started, or have failed. A second start of one that runs changes nothing.
    if stored.status != "ready":
        workflow_id = await Orchestrator(parts.temporal, parts.settings).start_ingestion(
            IngestInput(
                tenant=Tenant(
                    organisation_id=organisation, team_id=caller.team_id, key_id=caller.key_id
                ),
                collection_id=target.id,
                document_id=document_id,
                version=stored.version,
            ),
            headline=f"document of {len(body.text):,} characters",
        )
    response.status_code = 202 if workflow_id else 200
    response.headers["Location"] = f"/v1/collections/{target.id}/documents/{document_id}"
    return DocumentAccepted(
        **_document(stored).model_dump(), changed=changed, workflow_id=workflow_id
    )


@router.get(
    "/v1/collections/{collection}/documents/{document_id}",
    responses=answers(404),
    summary="Read a document's state",
)
async def get_document(
    caller: CollectionsCaller, parts: PartsOf, collection: str, document_id: UUID
) -> Document:
    """Tell how far a document's ingestion is."""
    target = await _find(parts, caller, collection)
    stored = await retrieval.get_document(parts.database, caller.organisation_id, document_id)
    if stored is None or stored.collection_id != target.id:
        raise not_found("document")
    return _document(stored)


async def _find(parts: Parts, caller: Principal, name_or_id: str) -> retrieval.Collection:
    found = await retrieval.get_collection_by_name_or_id(
        parts.database, caller.organisation_id, name_or_id
    )
    if found is None:
        known = await retrieval.list_collections(parts.database, caller.organisation_id)
        raise not_found("collection", known=[item.name for item in known])
    return found


def _collection(item: retrieval.Collection) -> Collection:
    return Collection(
        id=item.id,
        name=item.name,
        description=item.description,
        embedding_model=item.embedding_model,
        untrusted=item.untrusted,
        revision=item.revision,
        created_at=item.created_at,
    )


def _document(item: retrieval.Document) -> Document:
    return Document(
        id=item.id,
        collection_id=item.collection_id,
        external_id=item.external_id,
        title=item.title,
        version=item.version,
        status=item.status,
        chunks=item.chunk_count,
        updated_at=item.updated_at,
    )
