"""Real parts for the integration tests, started once a session and always ended."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.postgres import PostgresServer


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A temporary folder with a path short enough for Unix sockets, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="overline-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def postgres_server(short_folder: Path) -> Iterator[PostgresServer]:
    """A PostgreSQL 18 with pgvector of the session's own; `admin_url` is its superuser's."""
    with PostgresServer(short_folder / "pg") as server:
        yield server
