"""A real PostgreSQL 18 with pgvector in a temporary folder, one for the session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from uuid_utils.compat import uuid7

from deploy.local.postgres import PostgresServer
from store.bootstrap import bootstrap, migrate
from store.database import Database
from store.identity import Principal
from store.provision import create_key, create_organisation, create_team
from store.urls import in_database

APP_PASSWORD = "app-password-of-the-tests"
READER_PASSWORD = "reader-password-of-the-tests"


class Server:
    """The server under test: its own, because roles are shared by all databases of a server."""

    def __init__(self, folder: Path) -> None:
        self.postgres = PostgresServer(folder)

    def url(self, user: str, password: str) -> str:
        return self.postgres.where.url(user, password, "overline")

    @property
    def admin_url(self) -> str:
        return self.url("postgres", self.postgres.where.password)

    @property
    def app_url(self) -> str:
        return self.url("overline_app", APP_PASSWORD)

    @property
    def reader_url(self) -> str:
        return self.url("overline_reader", READER_PASSWORD)

    def prepare(self) -> None:
        self.postgres.start()
        bootstrap(self.admin_url, APP_PASSWORD, READER_PASSWORD)
        migrate(self.admin_url)


@pytest.fixture(scope="session")
def server(short_folder: Path) -> Iterator[Server]:
    running = Server(short_folder / "store")
    try:
        running.prepare()
        yield running
    finally:
        running.postgres.stop()


@pytest.fixture
async def db(server: Server) -> AsyncIterator[Database]:
    database = await Database.open(server.app_url, max_size=8, name="tests")
    yield database
    await database.close()


@pytest.fixture
async def admin_db(server: Server) -> AsyncIterator[Database]:
    database = await Database.open(server.admin_url, max_size=2, name="tests-admin")
    yield database
    await database.close()


@dataclass(frozen=True)
class Tenant:
    """An organisation with one team and one key."""

    organisation_id: UUID
    team_id: UUID
    key_id: UUID
    token: str

    @property
    def principal(self) -> Principal:
        return Principal(self.organisation_id, self.team_id, self.key_id, ("tasks",))


def make_tenant(
    server: Server,
    *,
    organisation_cap: Decimal | None = None,
    team_cap: Decimal | None = None,
    key_cap: Decimal | None = None,
) -> Tenant:
    organisation_id = create_organisation(
        server.admin_url, f"organisation {uuid7()}", cap_usd=organisation_cap
    )
    team_id = create_team(server.admin_url, organisation_id, "team", cap_usd=team_cap)
    key = create_key(server.admin_url, organisation_id, team_id, "key", cap_usd=key_cap)
    return Tenant(organisation_id, team_id, key.key_id, key.token)


@pytest.fixture
def tenant(server: Server) -> Tenant:
    return make_tenant(server)


@pytest.fixture
def other_tenant(server: Server) -> Tenant:
    return make_tenant(server)


@pytest.fixture
def scratch_database(server: Server) -> Iterator[str]:
    """An empty database of its own, as an admin URL; for migrations."""
    name = f"scratch_{uuid7().hex}"
    yield in_database(server.admin_url, name)
    with psycopg.connect(server.postgres.admin_url, autocommit=True) as connection:
        connection.execute(f'drop database if exists "{name}" with (force)')
