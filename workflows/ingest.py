"""`IngestDocument`: split, embed, store, each batch once, however often a process dies."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from workflows import policies
    from workflows.contracts import (
        EmbedInput,
        EmbedOutput,
        IngestInput,
        IngestOutcome,
        SplitInput,
        SplitOutput,
    )

__all__ = ["IngestDocument"]


@workflow.defn(name="IngestDocument")
class IngestDocument:
    """Makes one version of a document searchable."""

    @workflow.run
    async def run(self, document: IngestInput) -> IngestOutcome:
        """Ingest the document; its old chunks answer until the new ones are complete."""
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
