"""What a review found."""

from __future__ import annotations

from migrations.sql import run

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0030_review.sql")
