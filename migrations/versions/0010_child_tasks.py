"""Tasks of tasks: sub-agents and maps."""

from __future__ import annotations

from migrations.sql import run

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0010_child_tasks.sql")
