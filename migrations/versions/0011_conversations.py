"""Messages to a running task, and sessions."""

from __future__ import annotations

from migrations.sql import run

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0011_conversations.sql")
