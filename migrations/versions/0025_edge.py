"""What ends at the edge: cache hits, refusals, restricted keys."""

from __future__ import annotations

from migrations.sql import run

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0025_edge.sql")
