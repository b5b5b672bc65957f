"""Policies, and what they decided."""

from __future__ import annotations

from migrations.sql import run

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0022_safety.sql")
