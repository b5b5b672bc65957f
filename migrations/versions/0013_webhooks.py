"""Who is told of a task's end, and whether they were."""

from __future__ import annotations

from migrations.sql import run

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0013_webhooks.sql")
