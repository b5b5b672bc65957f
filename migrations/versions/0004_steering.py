"""Pause and resume, forks."""

from __future__ import annotations

from migrations.sql import run

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0004_steering.sql")
