"""The hot path: functions beside the rows they lock."""

from __future__ import annotations

from migrations.sql import run

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run(
        "0002_events.sql",
        "0002_audit.sql",
        "0002_identity.sql",
        "0002_tasks.sql",
        "0002_admission.sql",
        "0002_journal.sql",
        "0002_settlement.sql",
        "0002_tools_and_documents.sql",
        "0002_grants.sql",
    )
