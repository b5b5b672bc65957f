"""What the OpenAI-compatible routes keep."""

from __future__ import annotations

from migrations.sql import run

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("0021_openai_surface.sql")
