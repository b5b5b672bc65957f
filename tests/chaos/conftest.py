"""One stack that is broken again and again, and what is needed to audit it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from inference.client import TritonClient
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller
from tests.upstream import Served, registered, served

RESTART_LIMIT_S = 60


@pytest.fixture(scope="package")
def upstream() -> Iterator[Served]:
    """An engine elsewhere that speaks OpenAI's protocol; it outlives all that is killed."""
    with served() as running:
        yield running


@pytest.fixture(scope="package")
def stack(upstream: Served) -> Iterator[RunningStack]:
    """A stack with two workers and the scripted engine only; it starts in seconds."""
    with tempfile.TemporaryDirectory(prefix="overline-") as folder:
        running = RunningStack(
            Path(folder) / "stack",
            {
                "OVERLINE_MODELS": "scripted",
                "OVERLINE_WORKERS": "2",
                **registered(Path(folder) / "operator", upstream.url),
            },
        )
        try:
            running.up()
            yield running
        finally:
            running.overline("down")
        deadline = time.monotonic() + 10
        while (left := running.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left, f"still running after `down`: {left}"


@pytest.fixture
def whole(stack: RunningStack) -> RunningStack:
    """The stack with every part running: what the test before has killed is back."""
    stack.wait_for(lambda state: state.all_ready, limit_s=RESTART_LIMIT_S)
    return stack


@pytest_asyncio.fixture(scope="package")
async def engine(stack: RunningStack) -> AsyncIterator[TritonClient]:
    """The stack's Triton, asked past everything else."""
    async with TritonClient(stack.settings.triton_urls[0]) as client:
        yield client


@pytest.fixture(scope="package")
def books(stack: RunningStack, engine: TritonClient) -> Books:
    """Ledger and meter."""
    return Books(stack.admin_url, engine)


@pytest_asyncio.fixture
async def caller(whole: RunningStack) -> AsyncIterator[Caller]:
    """A tenant of the test's own, on a stack that is whole."""
    made = Caller.made(whole.admin_url, whole.state().urls["api"])
    yield made
    await made.http.aclose()
