"""Engines that speak OpenAI's protocol."""

from __future__ import annotations

from migrations.sql import run

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0020_upstreams.sql")
