"""Caps, limits and locks that hold while calls are in flight."""

from __future__ import annotations

from migrations.sql import run

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0031_money_under_load.sql")
