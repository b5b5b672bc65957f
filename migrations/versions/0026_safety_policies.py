"""Safety policies, decisions and redactions."""

from __future__ import annotations

from migrations.sql import run

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0026_safety_policies.sql")
