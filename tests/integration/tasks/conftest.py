"""What the tests of the whole task need: a tenant of their own, the ledger, the engine's meter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from inference.client import TritonClient
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller
from tests.integration.tasks.policies import SetPolicy, set_policy


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


@pytest.fixture
def policy(stack: RunningStack, caller: Caller) -> SetPolicy:
    """Sets the caller's safety policy."""

    async def set_to(*rules: dict[str, Any], **fields: Any) -> int:
        return await set_policy(stack.admin_url, caller.organisation_id, *rules, **fields)

    return set_to
