"""Word of soft budgets, tasks that wait for a budget, calls that end wherever they are made."""

from __future__ import annotations

from migrations.sql import run

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0028_gateway.sql")
