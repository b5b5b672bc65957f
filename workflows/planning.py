"""From what a caller asked to what the workflow is told: the same for every way to file a task."""

from __future__ import annotations

from uuid import UUID

from workflows import transcript
from workflows.contracts import (
    FiledRequest,
    LoopState,
    Output,
    Plan,
    TaskInput,
    TaskRequest,
    Tenant,
    Turn,
)
from workflows.loop import Loop
from workflows.output import schema_text

__all__ = ["first_turn", "headline", "plan_task"]


def plan_task(
    task_id: UUID, tenant: Tenant, request: TaskRequest, before: tuple[str, int] | None = None
) -> TaskInput:
    """Return the input of a task's workflow.

    Args:
        task_id: The task's row must be on file.
        tenant: Who asks and pays.
        request: The request as it is on file: collections by id.
        before: Digest and length of what was said before it in its session, if it is of one.
    """
    digest, chars = transcript.start(request.system, request.conversation())
    # What a session's earlier turns found outside stands before this one.
    drew = bool(request.collections) or any(tool.name != "calculator" for tool in request.tools)
    if before is not None and before[0]:
        digest, chars = transcript.extend(before[0], digest), before[1] + chars
    return TaskInput(
        task_id=task_id,
        tenant=tenant,
        plan=Plan(
            route=request.route,
            model=request.model,
            tools=request.tools,
            parallel_tool_calls=request.parallel_tool_calls,
            collections=tuple(UUID(collection) for collection in request.collections),
            passages=request.passages,
            sampling=request.sampling,
            limits=request.limits,
            cache=request.cache,
            output=(
                Output(digest=transcript.digest_of(schema_text(request.output_schema)))
                if request.output_schema is not None
                else None
            ),
            priority=request.priority,
            untrusted=bool(before and before[0]) and drew,
            safety=request.safety if isinstance(request, FiledRequest) else None,
        ),
        prompt_digest=digest,
        prompt_chars=chars,
    )


def first_turn(request: TaskRequest) -> Turn:
    """Return what the first model call of a task is for."""
    plan = Plan(tools=request.tools, parallel_tool_calls=request.parallel_tool_calls)
    return Loop(plan, LoopState(digest="", chars=0)).next_turn()


def headline(task: TaskInput) -> str:
    """Return one line for the Web UI: names and numbers, nothing of the caller's text."""
    tools = ", ".join(tool.name for tool in task.plan.tools) or "no tools"
    return f"task by key {task.tenant.key_id.hex[-8:]}: {task.prompt_chars:,} characters, {tools}"
