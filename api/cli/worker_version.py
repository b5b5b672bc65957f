"""`overline worker-version`: which build of the workers new tasks begin on."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, NoReturn

import typer
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.json_format import MessageToDict
from rich import box
from rich.table import Table
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.workflow.v1 import VersioningOverride, WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    SetWorkerDeploymentCurrentVersionRequest,
    SetWorkerDeploymentRampingVersionRequest,
    UpdateWorkflowExecutionOptionsRequest,
)
from temporalio.service import RPCError, RPCStatusCode

from api.cli.histories import connected, workflow_id_of
from api.cli.render import console, fail, print_json, print_table
from settings import Settings, load_settings

__all__ = ["worker_version"]

worker_version = typer.Typer(no_args_is_help=True, add_completion=False)

Build = Annotated[str, typer.Argument(help="Build, as in OVERLINE_BUILD_ID of its workers.")]
Deployment = Annotated[
    str | None,
    typer.Option("--deployment", help="Worker deployment; by default OVERLINE_WORKER_DEPLOYMENT."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

_IDENTITY = "overline worker-version"


@worker_version.command("list")
def list_versions(deployment: Deployment = None, as_json: Json = False) -> None:
    """List the builds of the deployment: which is current, which ramps, which still has tasks."""
    settings = load_settings()
    name = _name(settings, deployment, as_json)
    told = asyncio.run(_describe(settings, name, as_json))
    if as_json:
        print_json(told)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("build", "state", "new tasks", "first seen"):
        table.add_column(head, no_wrap=True)
    for version in told["versions"]:
        share = f"{version['share_percent']:g} %"
        table.add_row(version["build"], version["state"], share, version["created_at"])
    print_table(table)


@worker_version.command("current")
def set_current(build: Build, deployment: Deployment = None, as_json: Json = False) -> None:
    """Let new tasks begin on this build; those that run stay where they are."""
    settings = load_settings()
    name = _name(settings, deployment, as_json)
    asyncio.run(_set_current(settings, name, build, as_json))
    _say({"deployment": name, "current": build}, f"new tasks begin on build {build}", as_json)


@worker_version.command("ramp")
def set_ramp(
    build: Build,
    percent: Annotated[
        float, typer.Argument(min=0, max=100, help="Share of new tasks, in percent; 0 ends it.")
    ],
    deployment: Deployment = None,
    as_json: Json = False,
) -> None:
    """Let a share of the new tasks begin on this build, the rest on the current one."""
    settings = load_settings()
    name = _name(settings, deployment, as_json)
    asyncio.run(_set_ramp(settings, name, build, percent, as_json))
    facts = {"deployment": name, "ramping": build, "percent": percent}
    _say(facts, f"{percent:g} % of new tasks begin on build {build}", as_json)


@worker_version.command("move")
def move(
    build: Build,
    task: Annotated[str | None, typer.Option("--task", help="Move this task.")] = None,
    from_build: Annotated[
        str | None, typer.Option("--from", help="Move every running task of this build.")
    ] = None,
    deployment: Deployment = None,
    as_json: Json = False,
) -> None:
    """Have tasks go on with another build, for example because theirs has no workers any more.

    Its code must replay what they have done: `overline replay` says so beforehand.
    """
    settings = load_settings()
    name = _name(settings, deployment, as_json)
    if (task is None) == (from_build is None):
        fail("Say what to move: --task TASK, or --from BUILD.", as_json, status=2)
    moved = asyncio.run(_move(settings, name, build, task, from_build, as_json))
    facts = {"deployment": name, "build": build, "moved": moved}
    _say(facts, f"{len(moved)} go on with build {build}: {', '.join(moved)}", as_json)


def _name(settings: Settings, deployment: str | None, as_json: bool) -> str:
    name = deployment or settings.worker_deployment
    if not name:
        fail("Name the deployment: --deployment, or OVERLINE_WORKER_DEPLOYMENT.", as_json, status=2)
    return name


def _say(facts: dict[str, Any], line: str, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        console.print(line)


async def _describe(settings: Settings, name: str, as_json: bool) -> dict[str, Any]:
    async with connected(settings, as_json) as client:
        try:
            answer = await client.workflow_service.describe_worker_deployment(
                DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=name)
            )
        except RPCError as exc:
            _explain(exc, name, None, as_json)
    info = answer.worker_deployment_info
    routing = info.routing_config
    current = routing.current_deployment_version.build_id
    ramping, share = routing.ramping_deployment_version.build_id, routing.ramping_version_percentage
    versions = []
    for summary in info.version_summaries:
        facts = MessageToDict(summary)
        build = summary.deployment_version.build_id
        percent = {ramping: share, current: 100 - share}.get(build, 0.0) if build else 0.0
        state = str(facts.get("status", "")).removeprefix("WORKER_DEPLOYMENT_VERSION_STATUS_")
        versions.append(
            {
                "build": build,
                "state": state.lower(),
                "share_percent": percent,
                "created_at": str(facts.get("createTime", ""))[:19].replace("T", " "),
            }
        )
    return {"deployment": name, "current": current or None, "versions": versions}


async def _set_current(settings: Settings, name: str, build: str, as_json: bool) -> None:
    async with connected(settings, as_json) as client:
        try:
            await client.workflow_service.set_worker_deployment_current_version(
                SetWorkerDeploymentCurrentVersionRequest(
                    namespace=client.namespace,
                    deployment_name=name,
                    build_id=build,
                    identity=_IDENTITY,
                )
            )
        except RPCError as exc:
            _explain(exc, name, build, as_json)


async def _set_ramp(
    settings: Settings, name: str, build: str, percent: float, as_json: bool
) -> None:
    async with connected(settings, as_json) as client:
        try:
            await client.workflow_service.set_worker_deployment_ramping_version(
                SetWorkerDeploymentRampingVersionRequest(
                    namespace=client.namespace,
                    deployment_name=name,
                    # No version at nought percent is how Temporal is told to end a ramp.
                    build_id=build if percent else "",
                    percentage=percent,
                    identity=_IDENTITY,
                )
            )
        except RPCError as exc:
            _explain(exc, name, build, as_json)


async def _move(
    settings: Settings,
    name: str,
    build: str,
    task: str | None,
    from_build: str | None,
    as_json: bool,
) -> list[str]:
    """Send workflows to another build, once: from there on they do as their definition says."""
    target = WorkerDeploymentVersion(deployment_name=name, build_id=build)
    options = WorkflowExecutionOptions(
        versioning_override=VersioningOverride(
            one_time=VersioningOverride.OneTimeOverride(target_deployment_version=target)
        )
    )
    moved: list[str] = []
    async with connected(settings, as_json) as client:
        if task is not None:
            wanted = [workflow_id_of(task)]
        else:
            running = client.list_workflows(
                f"TemporalWorkerDeploymentVersion = '{name}:{from_build}'"
                " and ExecutionStatus = 'Running'"
            )
            wanted = [found.id async for found in running]
        for workflow_id in wanted:
            try:
                await client.workflow_service.update_workflow_execution_options(
                    UpdateWorkflowExecutionOptionsRequest(
                        namespace=client.namespace,
                        workflow_execution=WorkflowExecution(workflow_id=workflow_id),
                        workflow_execution_options=options,
                        update_mask=FieldMask(paths=["versioning_override"]),
                        identity=_IDENTITY,
                    )
                )
            except RPCError as exc:
                if exc.status is RPCStatusCode.NOT_FOUND and from_build is not None:
                    continue  # it has ended meanwhile
                if exc.status is RPCStatusCode.NOT_FOUND:
                    fail(f"Temporal has no running task {task!r}: {exc.message}.", as_json)
                _explain(exc, name, build, as_json)
            moved.append(workflow_id)
    return moved


def _explain(exc: RPCError, name: str, build: str | None, as_json: bool) -> NoReturn:
    """End the command with what a person can do; re-raises what is no refusal.

    Raises:
        RPCError: Temporal is away.
    """
    if exc.status is RPCStatusCode.NOT_FOUND:
        what = f"deployment {name!r}" if build is None else f"build {build!r} in {name!r}"
        fail(f"Temporal knows no {what}; start a worker of it first.", as_json)
    if exc.status in (RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.INVALID_ARGUMENT):
        fail(f"Temporal refuses: {exc.message}", as_json)
    raise exc
