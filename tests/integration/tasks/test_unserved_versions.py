"""Builds come and go: a task whose build has no workers says so, and is moved."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio import workflow
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig

from tests.integration.api.conftest import serving
from tests.integration.running import RunningStack
from tests.integration.tasks.caller import Caller, choose, say
from tests.integration.tasks.test_worker_versions import working
from workflows.client import connect_kwargs

CAP = 3
DEPLOYS = 8


async def _until(caller: Caller, task_id: str, code: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            read = (await caller.request("GET", f"/v1/tasks/{task_id}/why")).json()
            if read["reasons"][0]["code"] == code:
                first: dict[str, Any] = read["reasons"][0]
                return first
            await asyncio.sleep(0.2)


async def test_a_task_whose_build_nobody_runs_is_told_of_and_moved(
    stack: RunningStack, caller: Caller
) -> None:
    deployment = f"gone-{uuid4().hex[:8]}"
    old = stack.settings.model_copy(
        update={
            "task_queue": f"gone-{deployment}",
            "worker_deployment": deployment,
            "build_id": "one",
        }
    )
    new = old.model_copy(update={"build_id": "two"})

    async def command(*words: str) -> str:
        for _ in range(100):
            done = await asyncio.to_thread(
                stack.overline, "worker-version", *words, "--deployment", deployment
            )
            if done.returncode == 0:
                return done.stdout
            await asyncio.sleep(0.3)
        raise AssertionError(done.stdout + done.stderr)

    tools = [{"name": "calculator", "must_call": True, "approval": "always"}]
    question = choose({"tool": "calculator", "expression": "6*7"}) + say("It is 42.")
    async with serving(old) as api:
        here = Caller(str(api.base_url), caller.token, caller.organisation_id, caller.key_id)
        async with working(old):
            await command("current", "one")
            stranded = [
                await here.submit(question, model="scripted", tools=tools, cache="off")
                for _ in range(2)
            ]
            for task_id in stranded:
                await _until(here, task_id, "waiting_for_person")
        async with working(new):
            await command("current", "two")
            for task_id in stranded:
                path = f"/v1/tasks/{task_id}/approvals"
                (asked,) = (await here.request("GET", path)).json()["approvals"]
                decision = {"decision": "approve"}
                await here.request("POST", f"{path}/{asked['call_id']}", json=decision)
            reason = await _until(here, stranded[0], "version_unserved")
            assert reason["facts"]["build"] == "one"
            assert f"--task {stranded[0]}" in reason["advice"]
            await command("move", "two", "--task", stranded[0])
            assert (await here.ended(stranded[0]))["answer"] == "It is 42."
            assert stranded[1] in await command("move", "two", "--from", "one")
            assert (await here.ended(stranded[1]))["answer"] == "It is 42."
        await here.http.aclose()
    client = await Client.connect(old.temporal_address, **connect_kwargs(old))
    told = await client.get_workflow_handle(f"task-{stranded[0]}").describe()
    versioning = told.raw_description.workflow_execution_info.versioning_info
    assert versioning.deployment_version.build_id == "two"


def test_what_cannot_be_moved_is_refused_in_words(stack: RunningStack) -> None:
    move = ("worker-version", "move", "x", "--deployment", "d")
    for words, status, told in (
        ((), 2, "--task"),
        (("--task", "a", "--from", "b"), 2, "--task"),
        (("--task", str(uuid4())), 1, "no running task"),
    ):
        done = stack.overline(*move, *words)
        assert done.returncode == status, done.stderr
        assert told in done.stderr
    done = stack.overline(*move, "--from", "nobody", "--json")
    assert done.returncode == 0, done.stderr
    assert '"moved": []' in done.stdout


@workflow.defn(name="Nothing", sandboxed=False)
class Nothing:
    """Ends at once."""

    @workflow.run
    async def run(self) -> None:
        """Do nothing."""


async def test_more_deploys_than_temporal_keeps_builds_do_not_stand_in_each_others_way() -> None:
    """Temporal drops drained builds itself; here with a cap and delays so small that it shows."""
    quick = {
        "matching.maxVersionsInDeployment": f"{CAP}",
        "matching.PollerHistoryTTL": '"1s"',
        "matching.wv.VersionDrainageStatusVisibilityGracePeriod": '"1s"',
        "matching.wv.VersionDrainageStatusRefreshInterval": '"1s"',
    }
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(Path(sys.executable).parent / "temporal"),
        dev_server_extra_args=[
            part for pair in quick.items() for part in ("--dynamic-config-value", "=".join(pair))
        ],
        dev_server_log_level="error",
    ) as environment:
        client = environment.client
        for number in range(DEPLOYS):
            build = f"b{number}"
            async with Worker(
                client,
                task_queue="q",
                workflows=[Nothing],
                workflow_runner=UnsandboxedWorkflowRunner(),
                deployment_config=WorkerDeploymentConfig(
                    version=WorkerDeploymentVersion("d", build),
                    use_worker_versioning=True,
                    default_versioning_behavior=VersioningBehavior.PINNED,
                ),
            ):
                await _made_current(client, build)
                await client.execute_workflow("Nothing", id=f"w{number}", task_queue="q")
        told = await client.workflow_service.describe_worker_deployment(
            DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name="d")
        )
    info = told.worker_deployment_info
    assert info.routing_config.current_deployment_version.build_id == f"b{DEPLOYS - 1}"
    assert len(info.version_summaries) <= CAP


async def _made_current(client: Client, build: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await client.workflow_service.set_worker_deployment_current_version(
                    SetWorkerDeploymentCurrentVersionRequest(
                        namespace=client.namespace,
                        deployment_name="d",
                        build_id=build,
                        identity="tests",
                    )
                )
                return
            except RPCError:
                await asyncio.sleep(0.2)
