"""Schedules, and what came of each time."""

from __future__ import annotations

from migrations.sql import run

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0008_schedules.sql")
