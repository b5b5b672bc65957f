"""Tables, the tenant fence, grants."""

from __future__ import annotations

from migrations.sql import run

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run(
        "0001_identity_and_budgets.sql",
        "0001_tasks.sql",
        "0001_ledger.sql",
        "0001_catalogue_and_retrieval.sql",
        "0001_fence_and_grants.sql",
    )
