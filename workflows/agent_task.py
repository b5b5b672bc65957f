"""`AgentTask`: the agent's loop. One turn is a step; a step is one model call and its tool call.

The workflow keeps digests and counters, never texts: what was said is in Postgres, under the
task's id, and every activity reads it there.
"""

from __future__ import annotations

import asyncio
from decimal import Decimal

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from workflows import policies
    from workflows.chain import Answered, ModelCall, was_cancelled
    from workflows.client import SEARCH_COST, SEARCH_MODEL, SEARCH_STATUS
    from workflows.contracts import (
        TOOL_CALL_MAX_TOKENS,
        CloseInput,
        TaskError,
        TaskInput,
        TaskOutcome,
        TaskStatus,
        ToolCall,
        ToolInput,
        ToolName,
        ToolOutput,
        Turn,
    )
    from workflows.errors import StepLimitReached
    from workflows.failures import describe
    from workflows.transcript import extend

__all__ = ["AgentTask"]


@workflow.defn(name="AgentTask")
class AgentTask:
    """Carries one task from submission to its outcome."""

    @workflow.init
    def __init__(self, task: TaskInput) -> None:
        """Start the counters of the loop."""
        self._task = task
        self._step = 0
        self._digest = task.prompt_digest
        self._chars = task.prompt_chars
        self._calls: dict[ToolName, int] = {}
        self._asked: list[str] = []
        self._chose_to_answer = False
        self._cost = Decimal(0)
        self._model = ""
        self._lines: list[str] = []
        self._call: ModelCall | None = None

    @workflow.run
    async def run(self, task: TaskInput) -> TaskOutcome:
        """Run the loop to its end.

        Raises:
            ApplicationError: The task failed; the type and code are those of `workflows.errors`.
            asyncio.CancelledError: The task was cancelled.
        """
        try:
            answer = await self._loop()
        except (asyncio.CancelledError, Exception) as error:
            # A defect of ours, too, must end the task with its type and step; left to itself,
            # Temporal would retry the workflow task for ever.
            if was_cancelled(error):
                await self._close(TaskStatus.CANCELLED, None)
                raise asyncio.CancelledError from error
            failure = describe(error, step=self._step)
            await self._close(TaskStatus.FAILED, failure)
            raise self._failure(failure) from error
        self._mark(TaskStatus.SUCCEEDED)
        return TaskOutcome(
            task_id=task.task_id,
            status=TaskStatus.SUCCEEDED,
            steps=self._step,
            answer=answer.answer,
            cost_usd=self._cost,
        )

    async def _loop(self) -> Answered:
        while True:
            if self._step >= self._task.plan.limits.max_steps:
                raise ApplicationError(
                    f"no answer after {self._step} steps; raise limits.max_steps or drop tools",
                    type=StepLimitReached.type(),
                    non_retryable=True,
                )
            self._step += 1
            turn = self._next_turn()
            self._call = ModelCall(
                tenant=self._task.tenant,
                task_id=self._task.task_id,
                step=self._step,
                plan=self._task.plan,
                turn=turn,
                transcript_digest=self._digest,
                prompt_chars=self._chars,
                max_tokens=(
                    self._task.plan.sampling.max_tokens
                    if turn.purpose == "answer"
                    else TOOL_CALL_MAX_TOKENS
                ),
            )
            answered = await self._call.run()
            self._account(answered)
            if turn.purpose == "answer":
                return answered
            if workflow.cancellation_reason() is not None:
                # The call was at its end when the wish to cancel arrived, and swallowed it.
                raise asyncio.CancelledError
            if answered.tool_call is None or self._asked_before(answered.tool_call):
                self._chose_to_answer = True
            else:
                await self._use_tool(answered.tool_call)

    def _next_turn(self) -> Turn:
        """Choose what the next call is for: a tool choice among those left, or the answer."""
        left = [
            tool for tool in self._task.plan.tools if self._calls.get(tool.name, 0) < tool.max_calls
        ]
        owed = [tool for tool in left if tool.must_call and not self._calls.get(tool.name)]
        if owed:
            return Turn(
                purpose="tool_call", tools=tuple(tool.name for tool in owed), may_answer=False
            )
        # When every tool is owed once, calling them was all there was to choose.
        free = [tool for tool in left if not tool.must_call]
        if self._chose_to_answer or not free:
            return Turn(purpose="answer")
        return Turn(purpose="tool_call", tools=tuple(tool.name for tool in free))

    def _asked_before(self, call: ToolCall) -> bool:
        """Asking the same again can bring nothing new: the model goes round in circles."""
        asked = call.model_dump_json()
        if asked in self._asked:
            return True
        self._asked.append(asked)
        return False

    async def _use_tool(self, call: ToolCall) -> None:
        name = call.name
        output = await workflow.execute_activity(
            f"tools.{name}",
            ToolInput(
                tenant=self._task.tenant,
                task_id=self._task.task_id,
                step=self._step,
                call_key=f"{self._task.task_id}:{self._step}",
                call_id=f"{self._task.task_id}:{self._step}:{name}",
                tool_call=call,
                collections=self._task.plan.collections,
            ),
            result_type=ToolOutput,
            summary=f"step {self._step} · tool {name}",
            **policies.TOOL,
        )
        self._calls[name] = self._calls.get(name, 0) + 1
        self._digest = extend(self._digest, output.digest)
        self._chars += output.chars
        self._lines.append(f"{self._step}. tool `{name}` {'answered' if output.ok else 'failed'}")
        self._show()

    def _account(self, answered: Answered) -> None:
        self._digest = extend(self._digest, answered.digest)
        self._chars += answered.chars
        self._cost += answered.charge.billed_usd
        self._model = answered.model
        used = answered.charge.usage
        self._lines.append(
            f"{self._step}. `{answered.model}` "
            + (
                "from the cache"
                if answered.cached
                else f"{used.prompt_tokens} + {used.completion_tokens} tokens"
            )
            + f", ${answered.charge.billed_usd:f}"
        )
        self._show()

    def _show(self) -> None:
        """Tell the Web UI how far the task is; read by query, so it costs no history."""
        workflow.set_current_details("\n".join(self._lines[-50:]))

    async def _close(self, status: TaskStatus, error: TaskError | None) -> None:
        """End the task's row, unless the settlement of its last call has ended it."""
        self._mark(status)
        if self._call is not None and self._call.ended_task:
            return
        await asyncio.shield(
            workflow.execute_activity(
                "gateway.close",
                CloseInput(
                    tenant=self._task.tenant,
                    task_id=self._task.task_id,
                    status=status,
                    step=self._step,
                    error=error,
                ),
                summary=f"the task {status.value}",
                **policies.MONEY,
            )
        )

    def _mark(self, status: TaskStatus) -> None:
        workflow.upsert_search_attributes(
            [
                SEARCH_STATUS.value_set(status.value),
                SEARCH_COST.value_set(int(self._cost * 1_000_000)),
                SEARCH_MODEL.value_set(self._model),
            ]
        )

    def _failure(self, error: TaskError | None) -> ApplicationError:
        code = error.code if error else ""
        message = error.message if error else "failed"
        return ApplicationError(
            f"step {self._step}: {message} ({code})", error, type=code, non_retryable=True
        )
