"""Making documents searchable: split by the embedding model's own tokens, embed, publish."""

from __future__ import annotations

import asyncio

from semantic_text_splitter import MarkdownSplitter
from temporalio import activity

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.passages import EMBEDDING_MODEL, Passages
from store import documents, retrieval
from workflows.contracts import (
    EmbedInput,
    EmbedOutput,
    FailInput,
    IngestInput,
    SplitInput,
    SplitOutput,
)

__all__ = ["Ingestion"]

# MiniLM was trained on 256 tokens at most; what is longer would be cut without a word.
CHUNK_TOKENS = (120, 220)
OVERLAP_TOKENS = 24
# One batch is one activity: small enough to be repeated without regret.
BATCH_CHUNKS = 32


class Ingestion:
    """Each step is safe to repeat: chunks are keyed by document, version and ordinal."""

    def __init__(self, deps: Dependencies, passages: Passages) -> None:
        self._deps = deps
        self._passages = passages

    @activity.defn(name="retrieval.split")
    @typed_failures
    async def split(self, document: SplitInput) -> SplitOutput:
        """Split a document along its headings and paragraphs, and stage the chunks."""
        text = await retrieval.document_text(
            self._deps.db, document.tenant.organisation_id, document.document_id
        )
        tokenizer = await self._deps.tokenizers.of(EMBEDDING_MODEL)
        splitter = MarkdownSplitter.from_callback(
            tokenizer.count, CHUNK_TOKENS, overlap=OVERLAP_TOKENS
        )
        chunks = await asyncio.to_thread(splitter.chunks, text)
        await retrieval.stage_chunks(
            self._deps.db,
            document.tenant.organisation_id,
            document.document_id,
            document.version,
            chunks,
        )
        return SplitOutput(chunks=len(chunks), batches=-(-len(chunks) // BATCH_CHUNKS))

    @activity.defn(name="retrieval.embed")
    @typed_failures
    async def embed(self, batch: EmbedInput) -> EmbedOutput:
        """Embed one batch of staged chunks and store the embeddings."""
        staged = await retrieval.staged_chunks(
            self._deps.db,
            batch.tenant.organisation_id,
            batch.document_id,
            batch.version,
            start=batch.batch * BATCH_CHUNKS,
            count=BATCH_CHUNKS,
        )
        if staged:
            embeddings = await self._passages.embed([chunk.text for chunk in staged])
            await retrieval.store_embeddings(
                self._deps.db,
                batch.tenant.organisation_id,
                batch.document_id,
                batch.version,
                {
                    chunk.ordinal: embedding
                    for chunk, embedding in zip(staged, embeddings, strict=True)
                },
            )
        return EmbedOutput(stored=len(staged))

    @activity.defn(name="retrieval.fail")
    @typed_failures
    async def fail(self, document: FailInput) -> None:
        """Note that a version could not be ingested; the one before stays searchable."""
        await documents.fail_document(
            self._deps.db,
            document.tenant.organisation_id,
            document.document_id,
            document.version,
            document.error.model_dump(mode="json"),
        )

    @activity.defn(name="retrieval.publish")
    @typed_failures
    async def publish(self, document: IngestInput) -> None:
        """Let searches see the new version instead of the old one, at once."""
        await retrieval.publish(
            self._deps.db,
            document.tenant.organisation_id,
            document.document_id,
            document.version,
        )
