"""Admission under limits of rate."""

from __future__ import annotations

from migrations.sql import run

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0024_enforcement.sql")
