"""Keys that are rotated, restricted and last used; roles; audit of administration."""

from __future__ import annotations

from migrations.sql import run

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0017_identity.sql")
