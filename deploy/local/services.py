"""Our own processes as parts of the stack: the workers and the API."""

from __future__ import annotations

import sys
import time
from functools import cached_property
from typing import TYPE_CHECKING

import httpx2

from deploy.local.part import Part
from deploy.local.plan import Plan
from deploy.local.processes import Launch
from settings import Settings

if TYPE_CHECKING:
    from temporalio.service import ServiceClient

__all__ = ["ApiPart", "WorkerPart"]

_SILENT_S = 150.0  # a poll lasts a minute at most: a worker silent for longer is stuck


class ApiPart(Part):
    """The API server."""

    name = "api"
    needs = ("catalogue", "temporal", "triton")
    start_limit_s = 180.0  # two busy cores import our packages slowly
    patience_s = 12.0

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # One for all checks: making a client costs more than asking.
        self._http = httpx2.AsyncClient(timeout=self.health_limit_s, trust_env=False)

    @property
    def ready_text(self) -> str:
        """Where it listens."""
        return self._plan.api_url

    def launch(self) -> Launch:
        """Return the server's command line."""
        # -P: a folder named `deploy` in the caller's working folder must not be taken for ours.
        return Launch([sys.executable, "-P", "-m", "deploy.api"], self._plan.environment())

    async def problem(self) -> str | None:
        """Ask for its health."""
        try:
            answer = await self._http.get(f"{self._plan.api_url}/healthz")
        except httpx2.HTTPError as error:
            return f"no answer ({type(error).__name__})"
        return None if answer.status_code == 200 else f"/healthz answers {answer.status_code}"


class WorkerPart(Part):
    """One worker process, known to be ready when Temporal sees it poll."""

    needs = ("catalogue", "temporal", "triton")
    start_limit_s = 180.0
    patience_s = 20.0
    health_every_s = 10.0

    def __init__(self, plan: Plan, number: int) -> None:
        """Take which of the workers it is, from 1."""
        self.name = f"worker-{number}"
        self._plan = plan
        self._pid = 0
        self._seen: int | None = None
        self._connected: ServiceClient | None = None

    def started(self, pid: int) -> None:
        """Learn by which id Temporal will know it."""
        self._pid = pid

    @property
    def ready_text(self) -> str:
        """What it does."""
        return f"polls task queue {self._settings.task_queue!r}"

    def launch(self) -> Launch:
        """Return the worker's command line."""
        env = {**self._plan.environment(), "OVERLINE_WORKER_NAME": self.name}
        return Launch([sys.executable, "-P", "-m", "deploy.worker"], env)

    async def problem(self) -> str | None:
        """Look for this process among the pollers of its task queue."""
        pid = self._pid
        try:
            silent_s = await self._silence(pid)
        except Exception as error:  # whatever the client raises: Temporal was not reached
            # Temporal's illness is not the worker's: it is only held against one not yet ready.
            return None if self._seen == pid else f"Temporal: {type(error).__name__}"
        if silent_s is None:
            return None if self._seen == pid else "does not poll yet"
        self._seen = pid
        return None if silent_s < _SILENT_S else f"has not polled for {silent_s:.0f} s"

    async def _silence(self, pid: int) -> float | None:
        """Seconds since the process last polled; None when Temporal does not know it."""
        from temporalio.api.enums.v1 import TaskQueueType
        from temporalio.api.taskqueue.v1 import TaskQueue
        from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

        client = await self._client()
        answer = await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=self._settings.temporal_namespace,
                task_queue=TaskQueue(name=self._settings.task_queue),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
            )
        )
        mine = {f"{pid}@", f"{self.name}@", f"pid {pid} "}
        for poller in answer.pollers:
            if any(poller.identity.startswith(start) for start in mine):
                return max(0.0, time.time() - poller.last_access_time.ToMilliseconds() / 1000)
        return None

    async def _client(self) -> ServiceClient:
        if self._connected is None:
            # One question needs no `temporalio.client`, which brings workers and converters along
            # and takes as long to import as all else here.
            from temporalio.service import ConnectConfig, ServiceClient

            key = self._settings.temporal_api_key
            self._connected = await ServiceClient.connect(
                ConnectConfig(
                    target_host=self._settings.temporal_address,
                    api_key=key.get_secret_value() if key is not None else None,
                    tls=True if self._settings.temporal_uses_tls else None,
                )
            )
        return self._connected

    @cached_property
    def _settings(self) -> Settings:
        return Settings(_env_file=(self._plan.home.settings, ".env"))
