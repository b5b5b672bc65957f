"""The official package, with only its base URL changed, against the whole stack."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from uuid import uuid4

import httpx2
import openai
import pytest
import pytest_asyncio

from deploy.local.ports import free_port
from inference.client import TritonClient
from store.provision import create_key, create_organisation, create_team
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller


@pytest_asyncio.fixture(scope="session")
async def engine(stack: RunningStack) -> AsyncIterator[TritonClient]:
    """The stack's Triton, asked past everything else."""
    async with TritonClient(stack.settings.triton_urls[0]) as client:
        yield client


@pytest.fixture(scope="session")
def books(stack: RunningStack, engine: TritonClient) -> Books:
    """Ledger and meter."""
    return Books(stack.admin_url, engine)


@dataclass
class Replicas:
    """More API processes of the stack, which a test may end as it likes.

    Attributes:
        urls: Where the first, the second and the third are; each keeps its address when it is
            started again.
    """

    stack: RunningStack
    urls: list[str] = field(default_factory=list)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, number: int) -> None:
        """Start one, or start it again."""
        url = self.urls[number]
        own = {"OVERLINE_API_PORT": url.rpartition(":")[2], "OVERLINE_API_URL": url}
        with (self.stack.folder / "logs" / f"api-{number}.log").open("ab") as written:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "deploy.api"],
                env={**self.stack.env, **own},
                cwd=self.stack.folder,
                stdout=written,
                stderr=written,
            )
        self._processes[number:] = [process, *self._processes[number + 1 :]]

    async def ready(self, *numbers: int) -> None:
        """Wait until these answer."""
        async with httpx2.AsyncClient(timeout=5) as http, asyncio.timeout(150):
            for number in numbers:
                while not await _ready(http, self.urls[number]):
                    await asyncio.sleep(0.1)

    def end(self, number: int, how: signal.Signals) -> None:
        """End one."""
        self._processes[number].send_signal(how)

    def gone(self, number: int) -> None:
        """Wait until one that was ended is gone."""
        self._processes[number].wait(30)

    def stop(self) -> None:
        """End all."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(30)


async def _ready(http: httpx2.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(f"{url}/readyz")).status_code == 200
    except httpx2.TransportError:
        return False


@pytest_asyncio.fixture(scope="session")
async def replicas(stack: RunningStack) -> AsyncIterator[Replicas]:
    """Three API processes besides the stack's own, one set a session."""
    made = Replicas(stack)
    try:
        for number in range(3):
            made.urls.append(f"http://127.0.0.1:{free_port()}")
            made.start(number)
        await made.ready(0, 1, 2)
        yield made
    finally:
        made.stop()


@pytest_asyncio.fixture
async def caller(stack: RunningStack) -> AsyncIterator[Caller]:
    """A tenant of the test's own."""
    made = Caller.made(stack.admin_url, stack.state().urls["api"])
    yield made
    await made.http.aclose()


def client_of(caller: Caller, **options: object) -> openai.AsyncOpenAI:
    """The package, as its users have it, but asking once."""
    settings = {"max_retries": 0, "timeout": 30} | options
    return openai.AsyncOpenAI(
        base_url=f"{caller.base_url}/v1",
        api_key=caller.token,
        **settings,  # type: ignore[arg-type]
    )


@pytest_asyncio.fixture
async def sdk(caller: Caller) -> AsyncIterator[openai.AsyncOpenAI]:
    """Its client, for the test's tenant."""
    async with client_of(caller) as client:
        yield client


@pytest_asyncio.fixture
async def strict(caller: Caller) -> AsyncIterator[openai.AsyncOpenAI]:
    """The same, that refuses what is not exactly as documented."""
    async with client_of(caller, _strict_response_validation=True) as client:
        yield client


@pytest.fixture
def poor(stack: RunningStack) -> Callable[[Decimal], Caller]:
    """Makes a tenant whose key may spend so much."""

    def make(cap_usd: Decimal) -> Caller:
        organisation = create_organisation(stack.admin_url, f"poor {uuid4()}")
        team = create_team(stack.admin_url, organisation, "team")
        key = create_key(stack.admin_url, organisation, team, "key", cap_usd=cap_usd)
        return Caller(stack.state().urls["api"], key.token, organisation, key.key_id)

    return make
