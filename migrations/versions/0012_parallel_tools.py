"""Several tool calls in one step."""

from __future__ import annotations

from migrations.sql import run

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0012_parallel_tools.sql")
