"""The tool calls of a step: asked of people where the task says so, made once, told to the model.

Calls of one step are made at the same time, and each has its own retries and its own wait.
A wait for a person is durable and costs nothing while it lasts. Their word is on the approval's
row; a signal only says that it is there, so a signal that gets lost delays the call and no more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from fnmatch import fnmatchcase

from pydantic import JsonValue
from temporalio import workflow

from workflows import policies
from workflows.child_contracts import is_sub_agent
from workflows.client import SEARCH_STATUS
from workflows.contracts import (
    Approval,
    ApprovalInput,
    ApprovalWhen,
    TaskInput,
    TaskStatus,
    ToolCall,
    ToolInput,
    ToolOutput,
)
from workflows.loop import Loop
from workflows.sub_agents import SubAgents
from workflows.transcript import digest_of

__all__ = ["WAITING", "ToolCalls", "arguments_digest", "needs_approval"]

WAITING = "waiting for approval"
# How soon a decision is looked for that nobody told of; doubled each time.
FIRST_LOOK = timedelta(minutes=1)
LAST_LOOK = timedelta(hours=1)


def arguments_digest(arguments: dict[str, JsonValue]) -> str:
    """Return the digest that binds a decision to the arguments it is about."""
    return digest_of(json.dumps(arguments, sort_keys=True, separators=(",", ":")))


def needs_approval(
    policy: Approval, arguments: dict[str, JsonValue], *, untrusted: bool = False
) -> bool:
    """Tell whether a call waits for a person.

    Args:
        policy: Of the tool.
        arguments: Of the call.
        untrusted: Whether the model that chose it had read words from outside.
    """
    if not isinstance(policy, ApprovalWhen):
        return policy == "always" or (policy == "after_untrusted" and untrusted)
    return any(
        name in arguments and fnmatchcase(_text(arguments[name]), pattern)
        for name, pattern in policy.when.items()
    )


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class ToolCalls:
    """Makes the tool calls of one task."""

    def __init__(self, task: TaskInput, loop: Loop, agents: SubAgents) -> None:
        self._task = task
        self._loop = loop
        self._agents = agents
        self._uses = {use.name: use for use in task.plan.tools}
        self._decided: set[str] = set()
        self._waiting = 0

    def decided(self, call_id: str) -> None:
        """Take note that a person decided."""
        self._decided.add(call_id)

    async def make_all(
        self, step: int, calls: Sequence[tuple[int, ToolCall]]
    ) -> list[tuple[int, ToolCall, ToolOutput]]:
        """Make the calls of a step that may have several, all at once.

        Returns:
            What came of each, in the order in which the model chose them.

        Raises:
            BaseException: Of the first that could not be made; the others are then over, too.
        """
        making = [asyncio.create_task(self.make(step, call, place)) for place, call in calls]
        try:
            outputs = await asyncio.gather(*making)
        except BaseException:
            # Nothing of a step may go on when the step does not. One after the other: a workflow
            # must let go of them in the same order when it is replayed.
            for each in making:
                each.cancel()
            await asyncio.gather(*making, return_exceptions=True)
            raise
        return [(place, call, output) for (place, call), output in zip(calls, outputs, strict=True)]

    async def make(self, step: int, call: ToolCall, place: int | None = None) -> ToolOutput:
        """Make a call and return what came of it; a tool that fails is an answer, too.

        Args:
            step: The step it belongs to.
            call: The call.
            place: Which of the step's calls it is, from 1, if there may be several.
        """
        use = self._uses[call.name]
        asks = needs_approval(use.approval, call.arguments, untrusted=self._loop.untrusted)
        call_id = f"{self._task.task_id}:{step}:{call.name}"
        if place is not None:
            call_id = f"{self._task.task_id}:{step}.{place}:{call.name}"
        if asks or use.definition or place is not None:
            # Other arguments are another call, with another id.
            call_id += f":{arguments_digest(call.arguments)[:16]}"
        wanted = ToolInput(
            tenant=self._task.tenant,
            task_id=self._task.task_id,
            step=step,
            call_key=f"{self._task.task_id}:{step}",
            call_id=call_id,
            tool_call=call,
            collections=self._task.plan.collections,
            definition=use.definition,
            approval=asks,
            timeout_seconds=use.timeout_seconds or 30,
            max_attempts=use.max_attempts or 3,
            place=place,
        )
        return await self._approved(wanted) if asks else await self._run(wanted)

    async def _approved(self, wanted: ToolInput) -> ToolOutput:
        await workflow.execute_activity(
            "approvals.request",
            ApprovalInput(
                tenant=wanted.tenant,
                task_id=wanted.task_id,
                step=wanted.step,
                call_key=wanted.call_key,
                call_id=wanted.call_id,
                tool_call=wanted.tool_call,
            ),
            summary=f"step {wanted.step} · ask whether {wanted.tool_call.name} may be called"[:100],
            **policies.LOOKUP,
        )
        self._wait(1)
        patience = FIRST_LOOK
        while True:
            try:
                await workflow.wait_condition(
                    lambda: wanted.call_id in self._decided, timeout=patience
                )
            except TimeoutError:
                patience = min(2 * patience, LAST_LOOK)
            self._decided.discard(wanted.call_id)
            output = await self._run(wanted)
            if not output.pending:
                break
        self._wait(-1)
        return output

    def _wait(self, more: int) -> None:
        """Tell of the first call of a step that waits for a person, and of the last one's end."""
        before = self._waiting
        self._waiting += more
        if not before:
            workflow.upsert_search_attributes([SEARCH_STATUS.value_set(WAITING)])
        elif not self._waiting:
            running = TaskStatus.RUNNING.value
            workflow.upsert_search_attributes([SEARCH_STATUS.value_set(running)])

    async def _run(self, wanted: ToolInput) -> ToolOutput:
        registered = wanted.definition is not None
        name = wanted.tool_call.name
        if is_sub_agent(name):
            return await self._agents.ask(wanted)
        output: ToolOutput = await workflow.execute_activity(
            "tools.call" if registered else f"tools.{name}",
            wanted,
            result_type=ToolOutput,
            summary=f"step {wanted.step} · tool {name}"[:100],
            **(policies.registered_tool(wanted.timeout_seconds) if registered else policies.TOOL),
        )
        return output
