"""Agents and their versions; which agent a task is one of."""

from __future__ import annotations

from migrations.sql import run

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0007_agents.sql")
