"""Agents as tools: a call of one is a task of its own, a child of the task that calls.

Its answer, or why there is none, is what the tool says. What it takes is counted as the parent's.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from temporalio import workflow

from workflows import policies
from workflows.child_contracts import AskInput, ChildFiled, Heard, HearInput
from workflows.child_task import carry
from workflows.contracts import Plan, ToolInput, ToolOutput
from workflows.loop import Loop

__all__ = ["SubAgents"]


class SubAgents:
    """Asks the sub-agents of one task.

    Args:
        plan: Of the task.
        loop: Its counters.
        seconds_left: What is left of its deadline.
        may_go_on: Whether it may begin something: false while it is paused.
    """

    def __init__(
        self,
        plan: Plan,
        loop: Loop,
        *,
        seconds_left: Callable[[], float | None],
        may_go_on: Callable[[], bool],
    ) -> None:
        self._plan = plan
        self._loop = loop
        self._seconds_left = seconds_left
        self._may_go_on = may_go_on

    async def ask(self, call: ToolInput) -> ToolOutput:
        """Have a call answered by a task of its own.

        Raises:
            asyncio.CancelledError: The task is to end; its child has ended.
        """
        # A whole task is no part of the step that a pause lets finish.
        await workflow.wait_condition(self._may_go_on)
        name = call.tool_call.name
        tokens, seconds = self._plan.limits.max_tokens, self._seconds_left()
        filed: ChildFiled = await workflow.execute_activity(
            "children.ask",
            AskInput(
                call=call,
                tokens_left=None if tokens is None else max(1, tokens - self._loop.tokens),
                seconds_left=None if seconds is None else max(1, ceil(seconds)),
                priority=self._plan.priority,
            ),
            result_type=ChildFiled,
            summary=f"step {call.step} · file the task of {name}"[:100],
            **policies.LOOKUP,
        )
        if filed.output is not None:
            return filed.output
        assert filed.task is not None
        task = filed.task
        if self._loop.untrusted:
            # Whoever read words from outside may have put them into the question.
            plan = task.plan.model_copy(update={"untrusted": True})
            task = task.model_copy(update={"plan": plan})
        await carry(task, filed.headline)
        heard: Heard = await workflow.execute_activity(
            "children.hear",
            HearInput(call=call, task_id=filed.task.task_id),
            result_type=Heard,
            summary=f"step {call.step} · what did {name} say?"[:100],
            **policies.LOOKUP,
        )
        self._loop.spent_below(tokens=heard.tokens, cost_usd=heard.cost_usd)
        return heard.output
