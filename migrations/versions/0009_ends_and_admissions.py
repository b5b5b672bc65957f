"""A call admitted while its task is being ended leaves no hold behind."""

from __future__ import annotations

from migrations.sql import run

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0009_ends_and_admissions.sql")
