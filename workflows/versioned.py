"""Workflows as workers of a named deployment run them: those that may change builds midway.

A definition that names its behaviour is refused by Temporal from a worker without versioning, so
these are definitions of their own, and stand in for the others only where versioning is on.
"""

from __future__ import annotations

from temporalio import workflow
from temporalio.common import VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from workflows.contracts import IngestInput, IngestOutcome, SessionInput, SessionOutcome
    from workflows.ingest import IngestDocument
    from workflows.session import Session

__all__ = ["UpgradingIngestDocument", "UpgradingSession"]


# A document is soon done and its steps are few: it may go on with newer code.
@workflow.defn(name="IngestDocument", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class UpgradingIngestDocument(IngestDocument):
    """`IngestDocument`, on whatever build is current."""

    @workflow.run
    async def run(self, document: IngestInput) -> IngestOutcome:
        """Ingest the document."""
        return await super().run(document)


# A session waits for people, for days if they like: with a build that nobody runs any more it would
# answer nobody. Its turns are tasks of their own, and stay with theirs.
@workflow.defn(name="Session", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class UpgradingSession(Session):
    """`Session`, on whatever build is current."""

    @workflow.init
    def __init__(self, session: SessionInput) -> None:
        """Begin, or go on."""
        super().__init__(session)

    @workflow.run
    async def run(self, session: SessionInput) -> SessionOutcome:
        """Take every turn, then wait for the next message for a while."""
        return await super().run(session)
