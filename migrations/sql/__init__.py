"""Runs the SQL files beside this module as (part of) a revision."""

from __future__ import annotations

import re
from pathlib import Path

import sqlalchemy as sa
from alembic import op

_BIND = re.compile(r"(?<![:\w\\]):(?=\w)")


def run(*names: str) -> None:
    """Executes every statement of some files, in order.

    Args:
        names: file names in this folder.
    """
    for name in names:
        source = (Path(__file__).parent / name).read_text(encoding="utf-8")
        # Colons before words would be taken for bind parameters.
        op.execute(sa.text(_BIND.sub(r"\\:", source)))
