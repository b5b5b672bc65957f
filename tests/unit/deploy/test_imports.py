"""What a process imports before it does anything: every start pays for it, after a kill too.

A package is named here once it was found to be imported by a process that does not need it, or not
before somebody asks for what it does.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

_SERVERS = {"fastapi", "uvicorn", "sse_starlette"}
_TOOLS = {"mcp", "mcp_types"}
_TEMPORAL = {"temporalio", "grpc", "google"}
_DATABASE = {"psycopg", "psycopg_pool", "sqlalchemy", "alembic"}
_ENGINES = {"numpy", "tritonclient", "tokenizers", "jinja2", "aiohttp"}
_LAYERS = {"activities", "inference", "safety", "store", "migrations"}


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("deploy.worker", {*_SERVERS, *_TOOLS, "aiohttp", "alembic", "rich", "typer", "yaml"}),
        ("deploy.api", {*_TOOLS, "aiohttp", "alembic", "rich", "typer", "yaml"}),
        ("deploy.local.supervise", {*_SERVERS, *_TOOLS, "temporalio", "aiohttp", "jinja2", "rich"}),
        # `overline down`, `status`, and `up --detach`, which leaves the work to a supervisor.
        ("api.cli.stack", {*_SERVERS, *_TOOLS, *_TEMPORAL, *_DATABASE, *_ENGINES, *_LAYERS}),
        # `overline key`, as every command that asks the API.
        ("api.cli.identity", {*_SERVERS, *_TOOLS, *_TEMPORAL, *_DATABASE, *_ENGINES, *_LAYERS}),
    ],
)
def test_a_process_does_without(module: str, unwanted: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import {module}, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    imported = {name.partition(".")[0] for name in done.stdout.split()}
    assert module.partition(".")[0] in imported
    assert imported & unwanted == set()
