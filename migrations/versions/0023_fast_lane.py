"""Calls that start without a workflow."""

from __future__ import annotations

from migrations.sql import run

revision = "0023"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0023_fast_lane.sql")
