"""What large payloads are kept for, and until when."""

from __future__ import annotations

from migrations.sql import run

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0014_housekeeping.sql")
