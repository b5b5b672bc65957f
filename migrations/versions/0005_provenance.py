"""A prompt's provenance is written where it is read."""

from __future__ import annotations

from migrations.sql import run

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0005_provenance.sql")
