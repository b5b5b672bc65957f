"""${message}"""

from __future__ import annotations

from migrations.sql import run

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Applies the revision."""
    run("${up_revision}_${slug}.sql")
