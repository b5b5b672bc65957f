"""What reviews and cases found."""

from __future__ import annotations

from migrations.sql import run

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0016_review.sql")
