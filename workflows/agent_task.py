"""`AgentTask`: the agent's loop. One turn is a step; a step is one model call and its tool calls.

The workflow keeps digests and counters, never texts: what was said is in Postgres, under the
task's id, and every activity reads it there. A long task goes on in a new run between two steps,
when Temporal suggests it; nothing of it is lost, because all keys are those of the task.
"""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from workflows import policies
    from workflows.chain import Answered, ModelCall, was_cancelled
    from workflows.client import SEARCH_COST, SEARCH_MODEL, SEARCH_STATUS
    from workflows.contracts import (
        CloseInput,
        LoopState,
        TaskError,
        TaskInput,
        TaskOutcome,
        TaskStatus,
        ToolCall,
        ToolOutput,
        tool_call_tokens,
    )
    from workflows.decisions import Decisions
    from workflows.errors import (
        ContentBlocked,
        DeadlineReached,
        OutputInvalid,
        StepLimitReached,
        TokenLimitReached,
    )
    from workflows.failures import describe
    from workflows.inbox import Inbox
    from workflows.loop import Loop
    from workflows.output import no_answer_obeyed
    from workflows.permission import has_begun, may_begin
    from workflows.spent_budget import spent_budget
    from workflows.sub_agents import SubAgents
    from workflows.tool_calls import ToolCalls
    from workflows.waiting import wait_out

__all__ = ["AgentTask"]

# Before a server suggests it by its own defaults (4 MiB): the whole history of a run is read again
# by every worker that takes it up.
RUN_BYTES = 1_500_000


@workflow.defn(name="AgentTask")
class AgentTask:
    """Carries one task from submission to its outcome."""

    @workflow.init
    def __init__(self, task: TaskInput) -> None:
        """Take up the loop where it is."""
        state = task.state or LoopState(digest=task.prompt_digest, chars=task.prompt_chars)
        self._task = task
        self._loop = Loop(task.plan, state)
        self._decisions = Decisions()
        self._tools = ToolCalls(
            task,
            self._loop,
            SubAgents(
                task.plan,
                self._loop,
                seconds_left=self._seconds_left,
                may_go_on=lambda: not self._paused,
            ),
            self._decisions,
        )
        self._inbox = Inbox(task, self._loop, told=state.told)
        self._paused = state.paused
        self._was_paused = state.paused
        self._steering = state.steering
        self._started_at = state.started_at or workflow.now().timestamp()
        self._call: ModelCall | None = None

    @workflow.run
    async def run(self, task: TaskInput) -> TaskOutcome:
        """Run the loop to its end.

        Raises:
            ApplicationError: The task failed; the type and code are those of `workflows.errors`.
            asyncio.CancelledError: The task was cancelled.
        """
        try:
            async with asyncio.timeout(self._seconds_left()):
                answer = await self._turns()
        except workflow.ContinueAsNewError:
            raise
        except (asyncio.CancelledError, Exception) as error:
            # A defect of ours, too, must end the task with its type and step; left to itself,
            # Temporal would retry the workflow task for ever.
            if was_cancelled(error) and not _is_last_try(error):
                await self._close(TaskStatus.CANCELLED, None)
                raise asyncio.CancelledError from error
            failure = self._describe(error)
            await self._close(TaskStatus.FAILED, failure)
            raise ApplicationError(
                f"step {self._loop.step}: {failure.message} ({failure.code})",
                failure,
                type=failure.code,
                non_retryable=True,
            ) from error
        self._mark(TaskStatus.SUCCEEDED)
        return TaskOutcome(
            task_id=task.task_id,
            status=TaskStatus.SUCCEEDED,
            steps=self._loop.step,
            answer=answer.answer,
            cost_usd=self._loop.cost_usd,
        )

    @workflow.signal
    def pause(self, number: int = 0) -> None:
        """Stop before the next step; the one that runs is finished."""
        self._steer(number, paused=True)

    @workflow.signal
    def resume(self, number: int = 0) -> None:
        """Go on."""
        self._steer(number, paused=False)

    @workflow.signal
    def message(self, number: int) -> None:
        """Read what was said to the task, before the next step."""
        self._inbox.hear(number)

    @workflow.signal
    def decided(self, call_id: str) -> None:
        """Look at what a person decided."""
        self._decisions.decided(call_id)

    def _steer(self, number: int, *, paused: bool) -> None:
        """Follow a wish, unless a newer one overtook it on the way; one without a number counts."""
        if number and number < self._steering:
            return
        self._steering = max(self._steering, number)
        self._paused = paused

    async def _turns(self) -> Answered:
        loop, plan = self._loop, self._task.plan
        if plan.safety is not None:
            await may_begin(self._task, plan.safety, self._decisions)
        while True:
            await self._between_steps()
            loop.step += 1
            turn = loop.next_turn()
            self._call = ModelCall(
                tenant=self._task.tenant,
                task_id=self._task.task_id,
                step=loop.step,
                plan=plan,
                turn=turn,
                transcript_digest=loop.digest,
                prompt_chars=loop.chars,
                max_tokens=(
                    plan.sampling.max_tokens
                    if turn.purpose == "answer"
                    else tool_call_tokens(plan.tools, turn.parallel)
                ),
                out_of_time=self._out_of_time,
                may_go_on=self._may_go_on,
                decisions=self._decisions,
            )
            try:
                answered = await self._call.run()
            except ActivityError as error:
                spent = spent_budget(error)
                if spent is None:
                    raise
                # Nothing of the step was begun; it is when there is room.
                loop.step -= 1
                self._steer(spent.number, paused=True)
                workflow.set_current_details(f"{loop.text}\npaused: {spent.message}")
                continue
            loop.spoke(
                digest=answered.digest,
                chars=answered.chars,
                model=answered.model,
                cached=answered.cached,
                billed_usd=answered.charge.billed_usd,
                usage=answered.charge.usage,
            )
            self._show()
            if answered.stopped is not None:
                raise ApplicationError(
                    answered.stopped, type=ContentBlocked.type(), non_retryable=True
                )
            if answered.invalid is not None:
                self._reject(answered.invalid)
            elif turn.purpose == "answer":
                if not answered.charge.goes_on:
                    return answered
                loop.kept()
                self._inbox.look()
            if workflow.cancellation_reason() is not None:
                # The call was at its end when the wish to cancel arrived, and swallowed it.
                raise asyncio.CancelledError
            wanted = loop.wants(answered.tool_calls)
            if wanted and turn.parallel > 1:
                await self._use_tools(wanted, answered.held)
            elif wanted:
                await self._use_tool(wanted[0][1], answered.held)

    async def _between_steps(self) -> None:
        """Wait while paused, read messages, keep limits, start a new run when this one is long."""
        while True:
            if self._paused or self._was_paused:
                await self._pause()
            if self._paused or not self._inbox.unread:
                break
            await self._inbox.read()
        limits = self._task.plan.limits
        if self._loop.step >= limits.max_steps:
            raise ApplicationError(
                f"no answer after {self._loop.step} steps; raise limits.max_steps or drop tools",
                type=StepLimitReached.type(),
                non_retryable=True,
            )
        if limits.max_tokens is not None and self._loop.tokens >= limits.max_tokens:
            raise ApplicationError(
                f"no answer after {self._loop.tokens} tokens; raise limits.max_tokens",
                type=TokenLimitReached.type(),
                non_retryable=True,
            )
        if workflow.cancellation_reason() is not None:
            # A tool that was at its end swallowed the wish; a next run would not know of it.
            raise asyncio.CancelledError
        if _is_long():
            run = workflow.info()
            await workflow.wait_condition(workflow.all_handlers_finished)
            state = self._loop.state(
                paused=self._paused,
                steering=self._steering,
                told=self._inbox.told,
                started_at=self._started_at,
            )
            workflow.continue_as_new(
                has_begun(self._task).model_copy(update={"state": state}),
                # A pinned task moves to the build of today here, where nothing is replayed.
                initial_versioning_behavior=(
                    workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
                    if run.is_target_worker_deployment_version_changed()
                    else None
                ),
            )

    async def _pause(self) -> None:
        """Wait until the task may go on, or its run is long: people change their mind often."""
        self._was_paused = False
        # What was paused before lists of workflows could show it replays as it was.
        shown = workflow.patched("paused-is-shown")
        # A run that begins with a wish to go on was still told to be paused by the one before it.
        if shown and self._paused:
            workflow.upsert_search_attributes([SEARCH_STATUS.value_set("paused")])
        await workflow.wait_condition(lambda: not self._paused or _is_long())
        if shown and not self._paused:
            workflow.upsert_search_attributes([SEARCH_STATUS.value_set("running")])

    def _reject(self, problem: str) -> None:
        """Have the answer written again, or end with the call that was the last try."""
        if self._call is not None and self._call.ended_task:
            raise ApplicationError(
                no_answer_obeyed(problem), type=OutputInvalid.type(), non_retryable=True
            )
        self._loop.rejected(problem)

    async def _use_tool(self, call: ToolCall, held: str | None) -> None:
        self._hear(call, await self._tools.make(self._loop.step, call, held=held))
        self._show()

    async def _use_tools(self, calls: list[tuple[int, ToolCall]], held: str | None) -> None:
        """Make several calls at once; what they answered is heard in the order of the choice."""
        made = await self._tools.make_all(self._loop.step, calls, held=held)
        for place, call, output in made:
            self._hear(call, output, place)
        self._show()

    def _hear(self, call: ToolCall, output: ToolOutput, place: int | None = None) -> None:
        self._loop.heard(
            call.name,
            digest=output.digest,
            chars=output.chars,
            ok=output.ok,
            place=place,
            untrusted=output.untrusted,
            withheld=output.screened.blocked if output.screened else None,
        )

    def _may_go_on(self, tokens: int) -> bool:
        """Tell whether a step may follow one whose call has so many tokens."""
        limits = self._task.plan.limits
        if limits.max_tokens is not None and self._loop.tokens + tokens >= limits.max_tokens:
            return False
        return self._loop.step < limits.max_steps

    def _seconds_left(self) -> float | None:
        deadline = self._task.plan.limits.deadline_seconds
        if deadline is None:
            return None
        return max(0.0, self._started_at + deadline - workflow.now().timestamp())

    def _out_of_time(self) -> TaskError | None:
        """Return the error of a task whose deadline passed; its call is cancelled for it."""
        left = self._seconds_left()
        if left is None or left > 0:
            return None
        return TaskError(
            code=DeadlineReached.code,
            message=f"no answer within {self._task.plan.limits.deadline_seconds} seconds",
            step=self._loop.step,
        )

    def _describe(self, error: BaseException) -> TaskError:
        late = self._out_of_time() if isinstance(error, TimeoutError) else None
        return late or describe(error, step=self._loop.step)

    def _show(self) -> None:
        """Tell the Web UI how far the task is; read by query, so it costs no history."""
        workflow.set_current_details(self._loop.text)

    async def _close(self, status: TaskStatus, error: TaskError | None) -> None:
        """End the task's row, unless the settlement of its last call has ended it."""
        self._mark(status)
        if self._call is not None and self._call.ended_task:
            return
        closing = workflow.start_activity(
            "gateway.close",
            CloseInput(
                tenant=self._task.tenant,
                task_id=self._task.task_id,
                status=status,
                step=self._loop.step,
                error=error,
            ),
            summary=f"the task {status.value}",
            **policies.MONEY,
        )
        # The wish to cancel may be seen before it is delivered: then it arrives here.
        await wait_out(closing)
        closing.result()

    def _mark(self, status: TaskStatus) -> None:
        workflow.upsert_search_attributes(
            [
                SEARCH_STATUS.value_set(status.value),
                SEARCH_COST.value_set(int(self._loop.cost_usd * 1_000_000)),
                SEARCH_MODEL.value_set(self._loop.model),
            ]
        )


def _is_long() -> bool:
    run = workflow.info()
    return run.is_continue_as_new_suggested() or run.get_current_history_size() > RUN_BYTES


def _is_last_try(error: BaseException) -> bool:
    """Tell whether the task has failed already, with its last call."""
    return isinstance(error, ApplicationError) and error.type in (
        OutputInvalid.type(),
        ContentBlocked.type(),
    )
