"""Whose turn it is at the engine."""

from __future__ import annotations

from migrations.sql import run

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0015_fairness.sql")
