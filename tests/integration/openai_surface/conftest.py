"""The official package, with only its base URL changed, against the whole stack."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from uuid import uuid4

import openai
import pytest
import pytest_asyncio

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
