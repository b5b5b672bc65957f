"""Spend views."""

from __future__ import annotations

from migrations.sql import run

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0003_views.sql")
