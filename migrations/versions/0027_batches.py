"""Files and batches."""

from __future__ import annotations

from migrations.sql import run

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0027_batches.sql")
