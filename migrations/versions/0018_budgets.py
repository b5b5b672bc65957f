"""Budgets by period, of everything that can spend."""

from __future__ import annotations

from migrations.sql import run

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0018_budgets.sql")
