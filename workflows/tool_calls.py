"""The tool calls of a step: asked of people where the task says so, made once, told to the model.

Calls of one step are made at the same time, and each has its own retries and its own wait.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from fnmatch import fnmatchcase

from pydantic import JsonValue
from temporalio import workflow

from workflows import policies
from workflows.child_contracts import is_sub_agent
from workflows.contracts import (
    Approval,
    ApprovalInput,
    ApprovalWhen,
    ReleaseInput,
    TaskInput,
    ToolCall,
    ToolInput,
    ToolOutput,
)
from workflows.decisions import Decisions
from workflows.loop import Loop
from workflows.sub_agents import SubAgents
from workflows.transcript import digest_of

__all__ = ["ToolCalls", "arguments_digest", "needs_approval"]


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

    def __init__(
        self, task: TaskInput, loop: Loop, agents: SubAgents, decisions: Decisions
    ) -> None:
        self._task = task
        self._loop = loop
        self._agents = agents
        self._decisions = decisions
        self._uses = {use.name: use for use in task.plan.tools}

    async def make_all(
        self, step: int, calls: Sequence[tuple[int, ToolCall]], *, held: str | None = None
    ) -> list[tuple[int, ToolCall, ToolOutput]]:
        """Make the calls of a step that may have several, all at once.

        Args:
            step: The step.
            calls: The calls, each with its place.
            held: A rule of the task's policy that wants a person asked about them.

        Returns:
            What came of each, in the order in which the model chose them.

        Raises:
            BaseException: Of the first that could not be made; the others are then over, too.
        """
        making = [
            asyncio.create_task(self.make(step, call, place, held=held)) for place, call in calls
        ]
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

    async def make(
        self, step: int, call: ToolCall, place: int | None = None, *, held: str | None = None
    ) -> ToolOutput:
        """Make a call and return what came of it; a tool that fails is an answer, too.

        Args:
            step: The step it belongs to.
            call: The call.
            place: Which of the step's calls it is, from 1, if there may be several.
            held: A rule of the task's policy that wants a person asked about its arguments.
        """
        use = self._uses[call.name]
        asks = held is not None or needs_approval(
            use.approval, call.arguments, untrusted=self._loop.untrusted
        )
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
            safety=self._task.plan.safety,
        )
        output = await self._approved(wanted, held) if asks else await self._run(wanted)
        return output if output.sealed is None else await self._released(wanted, output)

    async def _approved(self, wanted: ToolInput, held: str | None) -> ToolOutput:
        """Make a call once a person allows it, or tell what they said instead."""

        async def look() -> ToolOutput | None:
            output = await self._run(wanted)
            return None if output.pending else output

        why = f", for rule {held}" if held else ""
        return await self._decisions.ask(
            ApprovalInput(
                tenant=wanted.tenant,
                task_id=wanted.task_id,
                step=wanted.step,
                call_key=wanted.call_key,
                call_id=wanted.call_id,
                tool_call=wanted.tool_call,
            ),
            f"step {wanted.step} · ask whether {wanted.tool_call.name} may be called{why}",
            look,
        )

    async def _released(self, wanted: ToolInput, output: ToolOutput) -> ToolOutput:
        """Tell the model an answer that a rule holds back, once a person allows it."""
        assert output.screened is not None
        rule, name = output.screened.held or "", wanted.tool_call.name
        release = ReleaseInput(
            call=wanted,
            approval_id=f"{wanted.call_id}:answer",
            sealed=output.sealed or "",
            rule=rule,
        )

        async def look() -> ToolOutput | None:
            released: ToolOutput = await workflow.execute_activity(
                "tools.release",
                release,
                result_type=ToolOutput,
                summary=f"step {wanted.step} · may the answer of {name} be read?"[:100],
                **policies.LOOKUP,
            )
            return None if released.pending else released

        released = await self._decisions.ask(
            ApprovalInput(
                tenant=wanted.tenant,
                task_id=wanted.task_id,
                step=wanted.step,
                call_key=wanted.call_key,
                call_id=release.approval_id,
                tool_call=ToolCall(name=name, arguments={"rule": rule, "answer": release.sealed}),
            ),
            f"step {wanted.step} · rule {rule} asks whether the answer of {name} may be read",
            look,
        )
        return released.model_copy(update={"untrusted": output.untrusted})

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
