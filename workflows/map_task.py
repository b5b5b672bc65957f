"""`MapTask`: one task for each of many inputs, so many at a time and no more.

The inputs are in the map's rows, and so is what became of each; the workflow keeps a cursor and
counters. Tasks are filed some at a time, ahead of their turn. A long map goes on in a new run: it
begins nothing more, waits for what runs, and takes its cursor along.
"""

from __future__ import annotations

import asyncio
from collections import deque

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from workflows import policies
    from workflows.chain import was_cancelled
    from workflows.child_contracts import (
        MapBatch,
        MapInput,
        MapItem,
        MapOutcome,
        MapState,
        NextInput,
    )
    from workflows.child_task import carry
    from workflows.client import SEARCH_STATUS
    from workflows.contracts import CloseInput, TaskError, TaskInput, TaskStatus
    from workflows.errors import DeadlineReached, MapStopped
    from workflows.failures import describe
    from workflows.waiting import wait_out

__all__ = ["MapTask"]

# As an agent's run: every worker that takes a run up reads all its history.
RUN_BYTES = 1_500_000
# Filed by one activity, at least and at most.
FEWEST_FILED, MOST_FILED = 8, 50


class _Ended(Exception):
    """The map cannot go on; what ran has ended."""

    def __init__(self, error: TaskError) -> None:
        super().__init__(error.code)
        self.error = error


@workflow.defn(name="MapTask")
class MapTask:
    """Carries one map from submission to its outcome."""

    @workflow.init
    def __init__(self, task: MapInput) -> None:
        """Take up the inputs where they are."""
        state = task.state or MapState()
        self._task = task
        self._cursor, self._done, self._failed = state.cursor, state.done, state.failed
        self._paused, self._steering = state.paused, state.steering
        self._started_at = state.started_at or workflow.now().timestamp()
        self._filed: deque[MapItem] = deque()
        self._batch = MapBatch()
        self._running: dict[int, asyncio.Task[None]] = {}
        self._begun = 0
        self._all_filed = False
        self._broken: Exception | None = None

    @workflow.run
    async def run(self, task: MapInput) -> MapOutcome:
        """Run every input to its end.

        Raises:
            ApplicationError: The map failed; the type and code are those of `workflows.errors`.
            asyncio.CancelledError: The map was cancelled.
        """
        try:
            async with asyncio.timeout(self._seconds_left()):
                await self._items()
        except workflow.ContinueAsNewError:
            raise
        except (asyncio.CancelledError, Exception) as error:
            await self._let_go()
            if was_cancelled(error):
                await self._close(TaskStatus.CANCELLED, None)
                raise asyncio.CancelledError from error
            failure = self._describe(error)
            await self._close(TaskStatus.FAILED, failure)
            raise ApplicationError(
                f"{failure.message} ({failure.code})",
                failure,
                type=failure.code,
                non_retryable=True,
            ) from error
        await self._close(TaskStatus.SUCCEEDED, None)
        return MapOutcome(task_id=task.task_id, done=self._done, failed=self._failed)

    @workflow.signal
    def pause(self, number: int = 0) -> None:
        """Begin no further input; those that run are told themselves."""
        self._steer(number, paused=True)

    @workflow.signal
    def resume(self, number: int = 0) -> None:
        """Go on."""
        self._steer(number, paused=False)

    def _steer(self, number: int, *, paused: bool) -> None:
        """Follow a wish, unless a newer one overtook it on the way."""
        if number and number < self._steering:
            return
        self._steering = max(self._steering, number)
        self._paused = paused

    async def _items(self) -> None:
        while not self._must_stop() and not _is_long(self._begun, self._task.run_items):
            if self._paused:
                await workflow.wait_condition(lambda: not self._paused)
            elif not self._filed and self._all_filed:
                break
            elif not self._filed:
                await self._file()
            elif len(self._running) >= self._task.concurrency:
                await workflow.wait_condition(
                    lambda: len(self._running) < self._task.concurrency or self._paused
                )
            else:
                self._begin(self._filed.popleft())
        await workflow.wait_condition(lambda: not self._running)
        self._raise_for_end()
        if self._filed or not self._all_filed:
            await self._go_on_in_new_run()

    def _must_stop(self) -> bool:
        """Tell whether no further input is begun."""
        stopped = self._task.on_error == "stop" and self._failed > 0
        return stopped or self._broken is not None or self._batch.refused is not None

    def _raise_for_end(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._task.on_error == "stop" and self._failed:
            raise _Ended(
                TaskError(
                    code=MapStopped.code,
                    message=f"{self._failed} input(s) failed after {self._done} answered, and "
                    "on_error is stop",
                )
            )
        if self._batch.refused is not None:
            raise _Ended(self._batch.refused)

    async def _file(self) -> None:
        """Have the next tasks filed, ahead of their turn."""
        self._batch = await workflow.execute_activity(
            "maps.next",
            NextInput(
                tenant=self._task.tenant,
                task_id=self._task.task_id,
                after=self._cursor,
                most=min(max(self._task.concurrency, FEWEST_FILED), MOST_FILED),
            ),
            result_type=MapBatch,
            summary=f"file the tasks after input {self._cursor}",
            **policies.LOOKUP,
        )
        self._filed.extend(self._batch.items)
        self._all_filed = not self._batch.items or self._filed[-1].number >= self._task.total

    def _begin(self, item: MapItem) -> None:
        self._cursor = item.number
        self._begun += 1
        assert self._batch.plan is not None
        task = TaskInput(
            task_id=item.task_id,
            tenant=self._task.tenant,
            plan=self._batch.plan,
            prompt_digest=item.prompt_digest,
            prompt_chars=item.prompt_chars,
        )
        headline = f"input {item.number}: {self._batch.headline}"[:180]
        running = asyncio.create_task(self._one(task, headline))
        self._running[item.number] = running
        # Also of one that is cancelled before its first line.
        running.add_done_callback(lambda _: self._running.pop(item.number))

    async def _one(self, task: TaskInput, headline: str) -> None:
        try:
            succeeded = await carry(task, headline)
        except Exception as error:
            self._broken = error
            return
        self._done += succeeded
        self._failed += not succeeded
        workflow.set_current_details(
            f"{self._done} answered, {self._failed} failed, {len(self._running) - 1} running, of "
            f"{self._task.total}"
        )

    async def _go_on_in_new_run(self) -> None:
        if workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError
        await workflow.wait_condition(workflow.all_handlers_finished)
        state = MapState(
            cursor=self._cursor,
            done=self._done,
            failed=self._failed,
            paused=self._paused,
            steering=self._steering,
            started_at=self._started_at,
        )
        workflow.continue_as_new(
            self._task.model_copy(update={"state": state}),
            # A pinned map moves to the build of today here, where nothing is replayed.
            initial_versioning_behavior=(
                workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
                if workflow.info().is_target_worker_deployment_version_changed()
                else None
            ),
        )

    async def _let_go(self) -> None:
        """Cancel what runs, and wait until all of it is settled."""
        for running in list(self._running.values()):
            running.cancel()
        while self._running:
            try:
                await workflow.wait_condition(lambda: not self._running)
            except asyncio.CancelledError:
                # It is cancelled already.
                continue

    def _seconds_left(self) -> float | None:
        deadline = self._task.deadline_seconds
        if deadline is None:
            return None
        return max(0.0, self._started_at + deadline - workflow.now().timestamp())

    def _describe(self, error: BaseException) -> TaskError:
        if isinstance(error, _Ended):
            return error.error
        if isinstance(error, TimeoutError) and self._seconds_left() == 0:
            return TaskError(
                code=DeadlineReached.code,
                message=f"{self._done + self._failed} of {self._task.total} inputs were over after "
                f"{self._task.deadline_seconds} seconds",
            )
        return describe(error, step=None)

    async def _close(self, status: TaskStatus, error: TaskError | None) -> None:
        """End the map's row."""
        workflow.upsert_search_attributes([SEARCH_STATUS.value_set(status.value)])
        closing = workflow.start_activity(
            "gateway.close",
            CloseInput(
                tenant=self._task.tenant,
                task_id=self._task.task_id,
                status=status,
                step=0,
                error=error,
            ),
            summary=f"the map {status.value}",
            **policies.MONEY,
        )
        await wait_out(closing)
        closing.result()


def _is_long(begun: int, run_items: int) -> bool:
    run = workflow.info()
    return (
        begun >= run_items
        or run.is_continue_as_new_suggested()
        or run.get_current_history_size() > RUN_BYTES
    )
