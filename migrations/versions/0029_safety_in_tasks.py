"""Safety policies in agents' tasks."""

from __future__ import annotations

from migrations.sql import run

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0029_safety_in_tasks.sql")
