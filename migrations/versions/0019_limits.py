"""Requests, tokens and calls at once, exact across processes."""

from __future__ import annotations

from migrations.sql import run

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0019_limits.sql")
