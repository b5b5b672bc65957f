"""Registered tools, and decisions about tool calls."""

from __future__ import annotations

from migrations.sql import run

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0006_tools.sql")
