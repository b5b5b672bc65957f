"""Documents on their way into a collection."""

from __future__ import annotations

from uuid import UUID

from workflows.contracts.base import Wire
from workflows.contracts.task import TaskError, Tenant

__all__ = [
    "EmbedInput",
    "EmbedOutput",
    "FailInput",
    "IngestInput",
    "IngestOutcome",
    "SplitInput",
    "SplitOutput",
]


class IngestInput(Wire):
    """Input of `IngestDocument`; the text is in the document's row."""

    tenant: Tenant
    collection_id: UUID
    document_id: UUID
    version: int


class FailInput(IngestInput):
    """Say on the document's row why it could not be ingested."""

    error: TaskError


class SplitInput(IngestInput):
    """Split a document into chunks."""


class SplitOutput(Wire):
    """How many chunks a document has."""

    chunks: int
    batches: int


class EmbedInput(IngestInput):
    """Embed and store one batch of a document's chunks."""

    batch: int


class EmbedOutput(Wire):
    """How many chunks were stored."""

    stored: int


class IngestOutcome(Wire):
    """Result of `IngestDocument`."""

    document_id: UUID
    chunks: int
