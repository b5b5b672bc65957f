"""Real parts for the integration tests, started once a session and always ended."""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local.postgres import PostgresServer
from tests.integration.running import RunningStack
from tests.upstream import Served, registered, served

_MODELS = "scripted,smollm2-135m-instruct,all-minilm-l6-v2"


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


@pytest.fixture(scope="session")
def outside_ports() -> tuple[int, int]:
    """Ports of an HTTP and an MCP service that tools of the stack may reach."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return one.getsockname()[1], two.getsockname()[1]


def stdio_server(folder: Path) -> list[str]:
    """Return the command line of an MCP server that workers start."""
    return [sys.executable, str(Path(__file__).parent / "tasks" / "stdio_server.py"), str(folder)]


@pytest.fixture(scope="session")
def upstream() -> Iterator[Served]:
    """An engine elsewhere that speaks OpenAI's protocol, as the stack's operator registered it."""
    with served() as running:
        yield running


@pytest.fixture(scope="session")
def stack(
    short_folder: Path, outside_ports: tuple[int, int], upstream: Served
) -> Iterator[RunningStack]:
    """The whole embedded stack, one a session, with the scripted and two real models."""
    http, mcp = outside_ports
    running = RunningStack(
        short_folder / "stack",
        {
            "OVERLINE_MODELS": _MODELS,
            "OVERLINE_EGRESS_ALLOW": f"127.0.0.1:{http},127.0.0.1:{mcp}",
            "OVERLINE_TOOL_SECRETS_FILE": str(short_folder / "tool-secrets.json"),
            **registered(short_folder / "operator", upstream.url),
            "OVERLINE_TOOL_MAX_BYTES": "6000000",
            "OVERLINE_MCP_SERVERS": json.dumps({"letters": stdio_server(short_folder)}),
        },
    )
    yield from _run(running)


@pytest.fixture
def own_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RunningStack]]:
    """Makes stacks for tests that break them; ended afterwards. Not started: call `up`."""
    made: list[RunningStack] = []
    with tempfile.TemporaryDirectory(prefix="overline-") as folder:

        def make(**variables: str) -> RunningStack:
            wanted = {"OVERLINE_MODELS": "scripted", "OVERLINE_WORKERS": "1", **variables}
            made.append(RunningStack(Path(folder) / f"s{len(made)}", wanted))
            return made[-1]

        yield make
        for running in made:
            running.overline("down")
            _assert_nothing_left(running)


def _run(running: RunningStack) -> Iterator[RunningStack]:
    try:
        running.up()
        yield running
    finally:
        running.overline("down")
    _assert_nothing_left(running)


def _assert_nothing_left(running: RunningStack) -> None:
    deadline = time.monotonic() + 10
    while (left := running.processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, f"still running after `down`: {left}"
