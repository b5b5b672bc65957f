"""The API on real parts: Postgres, Temporal, Triton with a scripted engine; tests play the worker.

Most of these tests need no worker: they write what a worker would write, through the store, and
look at what the API makes of it. The tests of the whole chain are elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import httpx2
import pytest
import pytest_asyncio
import uvicorn
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment
from uuid_utils.compat import uuid7

from api.app import create_app
from api.server import Server
from deploy.api import lane
from deploy.local.engine_env import ensure_engine_env
from deploy.local.ports import free_port
from deploy.local.postgres import PostgresServer
from deploy.local.processes import end_group, spawn
from deploy.local.temporal import SEARCH_ATTRIBUTES
from deploy.local.triton import TritonPart
from settings import Settings
from store.bootstrap import bootstrap, migrate
from store.catalogue import Deployment, Model, Price, Route, sync_catalogue
from store.database import Database
from store.provision import ALL_SCOPES, create_key, create_organisation, create_team
from workflows.client import connect_kwargs

MODEL = "scripted"
CAPABILITY = "capability-token-of-the-tests"
_ROOT = Path(__file__).parents[3]
_LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Tenant:
    """An organisation with one team and one key."""

    organisation_id: UUID
    team_id: UUID
    key_id: UUID
    token: str

    @property
    def headers(self) -> dict[str, str]:
        """What a request of this tenant carries."""
        return {"Authorization": f"Bearer {self.token}"}


def _temporal_program() -> str:
    return str(Path(sys.executable).parent / "temporal")


@pytest_asyncio.fixture(scope="session")
async def temporal_address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A Temporal server with our search attributes."""
    attributes = [f"{name}={kind}" for name, kind in SEARCH_ATTRIBUTES.items()]
    environment = await WorkflowEnvironment.start_local(
        dev_server_existing_path=_temporal_program(),
        dev_server_extra_args=[
            part for item in attributes for part in ("--search-attribute", item)
        ],
        dev_server_log_level="error",
    )
    try:
        yield environment.client.service_client.config.target_host
    finally:
        await environment.shutdown()


@pytest_asyncio.fixture(scope="session")
async def triton_url(short_folder: Path) -> AsyncIterator[str]:
    """A real Triton that serves the scripted engine."""
    engine_env = Path(os.environ.get("OVERLINE_ENGINE_ENV") or _ROOT / ".venv" / "engine")
    await asyncio.to_thread(ensure_engine_env, engine_env)
    ports = {name: free_port() for name in ("triton_grpc", "triton_http", "triton_metrics")}
    part = TritonPart(short_folder / "triton", engine_env, (MODEL,), short_folder / "models", ports)
    part.prepare(lambda line: None)
    process = spawn(part.launch(), short_folder / "triton.log")
    try:
        async with asyncio.timeout(part.start_limit_s):
            while await part.problem() is not None:
                assert process.poll() is None, (short_folder / "triton.log").read_text()[-2000:]
                await asyncio.sleep(0.2)
        yield part.url
    finally:
        end_group(process.pid, process=process, patience_s=5)


@pytest.fixture(scope="session")
def admin_url(postgres_server: PostgresServer) -> str:
    """The superuser's connection to a migrated database with a catalogue."""
    bootstrap(postgres_server.admin_url, "app-password", "reader-password")
    migrate(postgres_server.admin_url)
    return postgres_server.admin_url


def _app_url(admin_url: str) -> str:
    facts = conninfo_to_dict(admin_url)
    facts.update(user="overline_app", password="app-password", dbname="overline")
    return make_conninfo(**facts)


@pytest_asyncio.fixture(scope="session")
async def catalogue(admin_url: str, triton_url: str) -> None:
    """One language model, its price and its route."""
    facts = conninfo_to_dict(admin_url)
    facts["dbname"] = "overline"
    db = await Database.open(make_conninfo(**facts))
    models = [Model(MODEL, "1", 4096, 2048, ("chat", "json_schema"), "t1", "none")]
    deployments = [Deployment("local", MODEL, "scripted", (triton_url,), MODEL)]
    price = Price(MODEL, Decimal(1), Decimal("0.1"), Decimal(2), _LONG_AGO)
    routes = [Route("default", "The only one.", ({"model": MODEL},))]
    await sync_catalogue(db, models, deployments, [price], routes)
    await db.close()


@pytest.fixture(scope="session")
def settings(
    admin_url: str, temporal_address: str, triton_url: str, catalogue: None, short_folder: Path
) -> Settings:
    """Settings that point at the parts."""
    return Settings(
        home=short_folder,
        database_url=SecretStr(_app_url(admin_url)),
        temporal_address=temporal_address,
        triton_urls=(triton_url,),
        payload_keys=SecretStr("k1:" + base64.b64encode(bytes(range(32))).decode()),
        codec_token=SecretStr(CAPABILITY),
        task_queue="nobody-works-here",
    )


@contextlib.asynccontextmanager
async def serving(settings: Settings, *, ready: bool = True) -> AsyncIterator[httpx2.AsyncClient]:
    """Serve the API on a free port of this process; yields a client without a key.

    Args:
        settings: Settings of the API.
        ready: Wait until every part answers.
    """
    app = create_app(settings, make_lane=lane)
    port = free_port()
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None, access_log=False)
    server = Server(config, app.state.parts)
    task = asyncio.create_task(server._serve())
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        try:
            async with asyncio.timeout(30):
                while not server.started or (
                    ready and (await client.get("/readyz")).status_code != 200
                ):
                    await asyncio.sleep(0.05)
            yield client
        finally:
            app.state.parts.stopping.set()
            server.should_exit = True
            await task


@pytest_asyncio.fixture(scope="session")
async def api(settings: Settings) -> AsyncIterator[httpx2.AsyncClient]:
    """The API with everything behind it."""
    async with serving(settings) as client:
        yield client


@pytest_asyncio.fixture(scope="session")
async def db(settings: Settings) -> AsyncIterator[Database]:
    """The database as a worker sees it."""
    database = await Database.open(settings.database_url.get_secret_value(), name="tests")
    yield database
    await database.close()


@pytest_asyncio.fixture(scope="session")
async def temporal(settings: Settings) -> Client:
    """Temporal as a worker sees it."""
    return await Client.connect(settings.temporal_address, **connect_kwargs(settings))


def make_tenant(
    admin_url: str, *, cap_usd: Decimal | None = None, scopes: tuple[str, ...] = ALL_SCOPES
) -> Tenant:
    """Make an organisation with one team and one key."""
    organisation = create_organisation(admin_url, f"organisation {uuid7()}", cap_usd=cap_usd)
    team = create_team(admin_url, organisation, "team")
    key = create_key(admin_url, organisation, team, "key", scopes=scopes)
    return Tenant(organisation, team, key.key_id, key.token)


@pytest.fixture
def tenant(admin_url: str) -> Tenant:
    """A tenant of the test's own."""
    return make_tenant(admin_url)


@pytest.fixture
def other_tenant(admin_url: str) -> Tenant:
    """Another one."""
    return make_tenant(admin_url)
