"""Two builds of the workers: what runs ends on the old one, what begins is on the new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHistory
from temporalio.common import VersioningBehavior

from activities.dependencies import Dependencies
from deploy.versioning import deployment_config
from deploy.worker import working as all_workers
from settings import Settings
from store.database import Database
from tests.integration.api.conftest import serving
from tests.integration.running import RunningStack
from tests.integration.tasks.caller import Caller, choose, say, words
from workflows.client import connect_kwargs

MUST = [{"name": "calculator", "must_call": True}]
LONG = choose({"tool": "calculator", "expression": "2+2"}) + say(words(120), pace_ms=15)


@asynccontextmanager
async def working(settings: Settings) -> AsyncIterator[None]:
    """A worker as the worker process makes it."""
    client = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
    db = await Database.open(settings.database_url.get_secret_value(), name="tests-worker")
    deps = Dependencies(settings, db)
    try:
        await deps.preload()
        async with all_workers(client, deps):
            yield
    finally:
        await deps.close()


async def make_current(stack: RunningStack, deployment: str, build: str) -> None:
    """Make a build current, once Temporal has seen a worker of it."""
    for _ in range(100):
        done = await asyncio.to_thread(
            stack.overline, "worker-version", "current", build, "--deployment", deployment
        )
        if done.returncode == 0:
            return
        await asyncio.sleep(0.3)
    raise AssertionError(done.stdout + done.stderr)


async def _ingested(caller: Caller) -> str:
    """Ingest a document; returns its workflow's id."""
    name = f"c{uuid4().hex}"
    await caller.request("POST", "/v1/collections", json={"name": name})
    path = f"/v1/collections/{name}/documents"
    body = {"external_id": "d", "text": "Some words."}
    sent = (await caller.request("POST", path, json=body)).json()
    while (await caller.request("GET", f"{path}/{sent['id']}")).json()["status"] != "ready":
        await asyncio.sleep(0.1)
    return str(sent["workflow_id"])


async def _behaviour(client: Client, workflow_id: str) -> int:
    told = (await client.get_workflow_handle(workflow_id).describe()).raw_description
    return int(told.workflow_execution_info.versioning_info.behavior)


async def _builds(client: Client, workflow_id: str) -> set[str]:
    return builds_of(await client.get_workflow_handle(workflow_id).fetch_history())


def builds_of(history: WorkflowHistory) -> set[str]:
    """Builds that made a decision of a workflow."""
    return {
        event.workflow_task_completed_event_attributes.deployment_version.build_id
        for event in history.events
        if event.HasField("workflow_task_completed_event_attributes")
    }


async def test_a_task_ends_on_the_build_it_began_on(stack: RunningStack, caller: Caller) -> None:
    deployment = f"test-{uuid4().hex[:8]}"
    old = stack.settings.model_copy(
        update={
            "task_queue": f"versioned-{deployment}",
            "worker_deployment": deployment,
            "build_id": "one",
        }
    )
    new = old.model_copy(update={"build_id": "two"})
    client = await Client.connect(old.temporal_address, **connect_kwargs(old))
    async with serving(old) as api, working(old):
        here = Caller(str(api.base_url), caller.token, caller.organisation_id, caller.key_id)
        await make_current(stack, deployment, "one")
        first = await here.submit(LONG, model="scripted", tools=MUST, sampling={"max_tokens": 2000})
        async with here.watch(first) as watcher:
            await watcher.until(lambda seen: len(seen.text(2)) > 20)
            async with working(new):
                await make_current(stack, deployment, "two")
                second = await here.answered(LONG, model="scripted", tools=MUST, cache="off")
                ingested = await _ingested(here)
                last = await watcher.to_end()
        await here.http.aclose()
        told = stack.json("worker-version", "list", "--deployment", deployment)
    assert last.type == "task.succeeded"
    assert await _builds(client, f"task-{first}") == {"one"}
    assert await _builds(client, f"task-{second['id']}") == {"two"}
    assert await _builds(client, ingested) == {"two"}
    assert await _behaviour(client, ingested) == VersioningBehavior.AUTO_UPGRADE
    assert await _behaviour(client, f"task-{first}") == VersioningBehavior.PINNED
    assert told["current"] == "two"
    states = {version["build"]: version["state"] for version in told["versions"]}
    assert states == {"one": "draining", "two": "current"}


def test_a_build_nobody_runs_cannot_be_made_current(stack: RunningStack) -> None:
    for words_ in (("current", "x"), ("ramp", "x", "10"), ("list",)):
        done = stack.overline("worker-version", *words_, "--deployment", f"no-{uuid4().hex}")
        assert done.returncode == 1, done.stdout
        assert "start a worker of it first" in " ".join(done.stderr.split())
    done = stack.overline("worker-version", "list")
    assert (done.returncode, "OVERLINE_WORKER_DEPLOYMENT" in done.stderr) == (2, True)


def test_off_unless_named_and_never_half_named() -> None:
    assert deployment_config(Settings(_env_file=None)) is None
    assert deployment_config(Settings(_env_file=None, build_id="x")) is None
    for name, build in (("d", ""), ("d.e", "x")):
        with pytest.raises(ValueError, match="OVERLINE_"):
            deployment_config(Settings(_env_file=None, worker_deployment=name, build_id=build))


async def test_without_versioning_no_decision_names_a_build(
    stack: RunningStack, caller: Caller
) -> None:
    """Also of the workflow that may change builds where there are any."""
    client = await Client.connect(stack.settings.temporal_address, **connect_kwargs(stack.settings))
    task = await caller.answered(say("as ever"), model="scripted", cache="off")
    assert await _builds(client, await _ingested(caller)) == {""}
    assert await _builds(client, f"task-{task['id']}") == {""}
