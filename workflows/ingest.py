"""`IngestDocument`: split, embed, store, each batch once, however often a process dies."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from workflows import policies
    from workflows.contracts import (
        EmbedInput,
        EmbedOutput,
        FailInput,
        IngestInput,
        IngestOutcome,
        SplitInput,
        SplitOutput,
    )
    from workflows.failures import describe

__all__ = ["IngestDocument"]


@workflow.defn(name="IngestDocument")
class IngestDocument:
    """Makes one version of a document searchable."""

    @workflow.run
    async def run(self, document: IngestInput) -> IngestOutcome:
        """Ingest the document; its old chunks answer until the new ones are complete."""
        try:
            return await self._ingest(document)
        except ActivityError as error:
            await workflow.execute_activity(
                "retrieval.fail",
                FailInput(**document.model_dump(), error=describe(error, step=None)),
                summary="say that it failed",
                **policies.MONEY,
            )
            raise

    async def _ingest(self, document: IngestInput) -> IngestOutcome:
        fields = document.model_dump()
        split = await workflow.execute_activity(
            "retrieval.split",
            SplitInput(**fields),
            result_type=SplitOutput,
            summary="split into chunks",
            **policies.RETRIEVAL,
        )
        for batch in range(split.batches):
            await workflow.execute_activity(
                "retrieval.embed",
                EmbedInput(**fields, batch=batch),
                result_type=EmbedOutput,
                summary=f"embed and store batch {batch + 1} of {split.batches}",
                **policies.RETRIEVAL,
            )
        await workflow.execute_activity(
            "retrieval.publish",
            document,
            summary=f"publish {split.chunks} chunks",
            **policies.LOOKUP,
        )
        return IngestOutcome(document_id=document.document_id, chunks=split.chunks)
