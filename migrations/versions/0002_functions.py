"""The hot path: functions beside the rows they lock."""

from __future__ import annotations

from migrations.sql import run

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0002_functions.sql")
