"""The worker process: runs workflows and activities until it is asked to stop.

python -m deploy.worker      (or: overline worker)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.batches.batches import Batches
from activities.cache import Cache
from activities.children import Children
from activities.context import Context
from activities.dependencies import Dependencies
from activities.gateway import Gateway
from activities.generation import Generation
from activities.housekeeping import Housekeeper
from activities.ingestion import Ingestion
from activities.lane.lane import FastLane
from activities.lane.recovery import CallRecovery
from activities.maps import Maps
from activities.messages import Messages
from activities.passages import Passages
from activities.permissions import Permissions
from activities.registered_tools import RegisteredTools
from activities.registration import Registration
from activities.router import Router
from activities.schedules import Schedules
from activities.sessions import Sessions
from activities.tools import Tools
from activities.webhooks import Webhooks
from api.openai.lines import LineSurface
from deploy.model_workers import ModelWorkers
from deploy.versioning import build_id, deployment_config, workflows_of
from observability.logs import setup_logging
from observability.metrics import start_metrics_server
from observability.temporal import install_runtime
from observability.tracing import Tracing, setup_tracing
from settings import Settings, load_settings
from store.database import Database
from store.payloads import PayloadShelf
from workflows.client import connect_kwargs
from workflows.large_payloads import Shelf
from workflows.registry import PASSED_THROUGH, WORKFLOWS

__all__ = ["WORKFLOWS", "activities", "build_worker", "connect", "main", "run_worker", "working"]

logger = logging.getLogger(__name__)

GRACE = timedelta(seconds=5)
# The default (0.8 of the heartbeat timeout, up to a minute) loses what a killed worker had reported
# and delays cancellation by as much; a test shows both.
HEARTBEAT_THROTTLE = timedelta(milliseconds=200)
CONNECT_RETRY_SECONDS = 1.0
# From the wish to stop to the end of the process.
LAST_MOMENT_SECONDS = GRACE.total_seconds() + 7.0


def activities(deps: Dependencies, batches: Batches) -> list[Callable[..., Any]]:
    """Return every activity, bound to what it needs."""
    passages = Passages(deps)
    gateway, cache, router = Gateway(deps), Cache(deps), Router(deps)
    context, generation = Context(deps, passages), Generation(deps)
    permissions = Permissions(deps)
    tools, ingestion = Tools(deps, passages), Ingestion(deps, passages)
    schedules, webhooks = Schedules(deps), Webhooks(deps)
    housekeeper = Housekeeper(deps)
    recovery = CallRecovery(deps)
    children = Children(deps)
    return [
        gateway.admit,
        gateway.settle,
        gateway.conclude,
        gateway.close,
        cache.look_up,
        router.decide,
        context.assemble,
        generation.generate,
        generation.account,
        permissions.judge,
        permissions.release,
        tools.calculator,
        tools.search,
        tools.request_approval,
        tools.decided,
        tools.release,
        Messages(deps).take,
        Sessions(deps).next,
        RegisteredTools(deps).call,
        Registration(deps).register,
        ingestion.split,
        ingestion.embed,
        ingestion.publish,
        ingestion.fail,
        children.ask,
        children.hear,
        children.end,
        children.ended_as,
        Maps(deps).next,
        batches.validate,
        batches.lines,
        batches.finish,
        schedules.file,
        schedules.started,
        schedules.ended,
        recovery.finish,
        recovery.end,
        webhooks.deliver,
        webhooks.give_up,
        housekeeper.partitions,
        housekeeper.content,
        housekeeper.blobs,
        housekeeper.payloads,
        housekeeper.files,
    ]


def build_worker(client: Client, deps: Dependencies, batches: Batches) -> Worker:
    """Return the worker with the settings that the promises need (see docs/promises.md)."""
    settings = deps.settings
    return Worker(
        client,
        task_queue=settings.task_queue,
        workflows=list(workflows_of(settings)),
        activities=activities(deps, batches),
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
        ),
        max_concurrent_activities=settings.worker_concurrency,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        # A killed worker's workflows wait this long (default ten seconds) for it to come back.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=1),
        graceful_shutdown_timeout=GRACE,
        build_id=build_id(settings),
        deployment_config=deployment_config(settings),
    )


@contextlib.asynccontextmanager
async def working(client: Client, deps: Dependencies) -> AsyncIterator[asyncio.Task[None]]:
    """Run all workers of a process while the body runs; they stop side by side.

    Yields:
        What ends before the body does only if a worker of model calls broke for good.
    """
    lane = FastLane(deps)
    deps.judging.judge = lane
    batches = Batches(deps, lane, LineSurface())
    await lane.start()
    models = asyncio.create_task(
        ModelWorkers(
            client,
            deps,
            [Generation(deps).generate, batches.lines],
            heartbeat_throttle=HEARTBEAT_THROTTLE,
            grace=GRACE,
        ).run()
    )
    try:
        async with build_worker(client, deps, batches):
            try:
                yield models
            finally:
                models.cancel()
    finally:
        models.cancel()
        await asyncio.gather(models, return_exceptions=True)
        await lane.stop()


async def connect(settings: Settings, shelf: Shelf | None = None, **extra: Any) -> Client:
    """Connect to Temporal, waiting for it for as long as it takes."""
    waiting = False
    while True:
        try:
            return await Client.connect(
                settings.temporal_address, **connect_kwargs(settings, shelf), **extra
            )
        except (RuntimeError, RPCError):
            if not waiting:
                logger.warning("waiting for Temporal at %s", settings.temporal_address)
            waiting = True
            await asyncio.sleep(CONNECT_RETRY_SECONDS)


async def run_worker(settings: Settings) -> None:
    """Run a worker until SIGTERM or SIGINT."""
    if settings.metrics_port:
        start_metrics_server(settings.metrics_port, settings.metrics_host)
    with setup_tracing("overline-worker", settings) as tracing:
        stop = asyncio.Event()
        serving = asyncio.create_task(_serve(settings, tracing, stop))
        stopping = asyncio.create_task(stop.wait())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            # Whatever it waits for, Temporal not answering for one: heartbeats and journal make
            # a hard end harmless, and an end that hangs is worse.
            threading.Thread(target=_end_at_the_latest, daemon=True).start()
        await serving
        stopping.cancel()


def _end_at_the_latest() -> None:
    time.sleep(LAST_MOMENT_SECONDS)
    os._exit(1)


async def _serve(settings: Settings, tracing: Tracing, stop: asyncio.Event) -> None:
    db = await Database.open(
        settings.database_url.get_secret_value(),
        max_size=settings.database_pool_size,
        name="overline-worker",
    )
    deps = Dependencies(settings, db)
    try:
        shelf = PayloadShelf(db, keep=timedelta(days=settings.keep_days))
        client = await connect(settings, shelf, plugins=[tracing.temporal_plugin()])
        await deps.preload()
        async with working(client, deps) as models:
            logger.info("worker ready on task queue %s", settings.task_queue)
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({stopping, models}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if models.done():
                models.result()
            logger.info("worker stopping")
    finally:
        await deps.close()


def main() -> None:
    """Entry point of the worker process."""
    settings = load_settings()
    setup_logging(settings, "overline-worker")
    install_runtime()
    asyncio.run(run_worker(settings))


if __name__ == "__main__":
    main()
