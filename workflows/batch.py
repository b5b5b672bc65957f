"""`Batch`: many requests in a file, each made once, at batch priority.

The lines are rows, and so is what came of each; the workflow keeps how many may be worked on at a
time, and waits. One activity is a *slice*: some seconds of one engine slot, in which line after
line is made by the fast lane. So ten thousand lines are some hundred activities, a worker that dies
costs the line it was at nothing but time, and whoever is not a batch goes first at every slice.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from workflows import policies
    from workflows.chain import was_cancelled
    from workflows.client import SEARCH_STATUS
    from workflows.contracts.batch import (
        BatchClass,
        BatchInput,
        BatchOutcome,
        BatchState,
        BatchStep,
        FinishBatch,
        LinesDone,
        LinesInput,
        Validated,
    )
    from workflows.contracts.task import TaskError
    from workflows.failures import describe
    from workflows.queueing import model_queue, task_turn
    from workflows.waiting import wait_out

__all__ = ["Batch"]

# As a map's run: every worker that takes a run up reads all its history.
RUN_BYTES = 1_500_000
# A slice that nobody takes is given up so long after the window.
GRACE = timedelta(hours=1)


@dataclass
class _Group:
    """The lines of one class.

    Attributes:
        open: How many slots may be at work now: halved by every limit, doubled by every good slice.
        active: How many are, or wait for a limit.
        over: Whether one of them found nothing left to begin.
        left: How many worked on lines and ended before they found that.
    """

    name: str
    width: int
    open: int
    active: int = 0
    over: bool = False
    left: int = 0


@workflow.defn(name="Batch")
class Batch:
    """Carries one batch to its end."""

    @workflow.init
    def __init__(self, batch: BatchInput) -> None:
        """Take the batch up where it is."""
        self._batch = batch
        self._state = batch.state
        self._slots: dict[int, asyncio.Task[None]] = {}
        self._begun = 0
        self._answered = batch.state.answered if batch.state else 0
        self._failed = batch.state.failed if batch.state else 0
        self._cancelled = False
        self._long = False
        self._broken: Exception | None = None

    @workflow.run
    async def run(self, batch: BatchInput) -> BatchOutcome:
        """Look at the lines, have each made, write what came of them.

        Raises:
            asyncio.CancelledError: It was cancelled in Temporal; so is the batch.
        """
        error: TaskError | None = None
        outside: BaseException | None = None
        try:
            classes = self._state.classes if self._state else await self._validate()
            await self._lines(classes)
        except workflow.ContinueAsNewError:
            raise
        except (asyncio.CancelledError, Exception) as failure:
            await self._let_go()
            if was_cancelled(failure):
                outside = failure
            else:
                error = describe(failure, step=None)
        outcome = await self._finish(error, cancelled=outside is not None)
        workflow.upsert_search_attributes([SEARCH_STATUS.value_set(outcome.status)])
        if outside is not None:
            raise asyncio.CancelledError from outside
        return outcome

    @workflow.signal
    def cancel(self) -> None:
        """Begin no further line; those that are being made are made to their end."""
        self._cancelled = True
        for slot in self._slots.values():
            slot.cancel()

    async def _validate(self) -> tuple[BatchClass, ...]:
        validated: Validated = await workflow.execute_activity(
            "batches.validate",
            BatchStep(tenant=self._batch.tenant, batch_id=self._batch.batch_id),
            result_type=Validated,
            summary="look at every line, and file it",
            **policies.BATCH_STEP,
        )
        return validated.classes

    async def _lines(self, classes: tuple[BatchClass, ...]) -> None:
        groups = []
        for each in classes:
            width = min(self._batch.width, each.lines)
            group = _Group(each.name, width, width)
            groups.append(group)
            for _ in range(width):
                self._begin(len(self._slots), group)
        await workflow.wait_condition(lambda: not self._slots)
        if self._broken is not None:
            raise self._broken
        left = tuple(
            each
            for each, group in zip(classes, groups, strict=True)
            if group.left or not group.over
        )
        if left and not self._cancelled:
            await self._go_on_in_new_run(left)

    def _begin(self, number: int, group: _Group) -> None:
        if self._cancelled:
            return
        slot = asyncio.create_task(self._slot(number, group))
        self._slots[number] = slot
        # Also of one that is cancelled before its first line.
        slot.add_done_callback(lambda _: self._slots.pop(number))

    async def _slot(self, number: int, group: _Group) -> None:
        """Work on slice after slice, until one of them finds nothing left to begin.

        A slot that has worked on lines hears that from its own slice only: it may have put one off
        just after another slot looked.
        """
        begun = over = False
        while not over:
            await workflow.wait_condition(partial(self._may_look, group, begun=begun))
            if self._stops():
                group.left += begun
                return
            if group.over and not begun:
                return
            if group.active >= group.open:
                # Of several that were woken at once another one was first.
                continue
            begun = True
            group.active += 1
            try:
                over = await self._slice_and_pause(number, group)
            except Exception as error:
                # One that nobody took before the window was over ends with it.
                if not self._is_window_over(error):
                    self._broken = error
                over = True
            finally:
                group.active -= 1
        group.over = True

    def _may_look(self, group: _Group, *, begun: bool) -> bool:
        return group.active < group.open or (group.over and not begun) or self._stops()

    async def _slice_and_pause(self, number: int, group: _Group) -> bool:
        """Work on a slice, and wait if it says so; returns whether nothing was left to begin."""
        done = await self._slice(number, group)
        self._answered += done.answered
        self._failed += done.failed
        waits = f"; waits {done.wait_s:.0f} s: {done.reason}" if done.wait_s else ""
        workflow.set_current_details(f"{self._answered} answered, {self._failed} failed{waits}")
        if done.wait_s is None:
            group.open = min(group.width, group.open * 2)
        else:
            group.open = max(1, group.open // 2)
            await workflow.sleep(done.wait_s)
        return done.over

    async def _slice(self, number: int, group: _Group) -> LinesDone:
        self._begun += 1
        if self._begun >= self._batch.run_slices or _is_long():
            self._long = True
        options = policies.LINES | {
            "priority": task_turn(self._batch.tenant, "batch"),
            "schedule_to_close_timeout": timedelta(seconds=self._seconds_left()) + GRACE,
        }
        if group.name:
            options["task_queue"] = model_queue(workflow.info().task_queue, group.name)
        done: LinesDone = await workflow.execute_activity(
            "batches.lines",
            LinesInput(
                tenant=self._batch.tenant,
                batch_id=self._batch.batch_id,
                deployment_class=group.name,
                slot=number,
            ),
            result_type=LinesDone,
            summary=f"slot {number}: some lines",
            **options,
        )
        return done

    def _stops(self) -> bool:
        return self._cancelled or self._long or self._broken is not None

    def _seconds_left(self) -> float:
        return max(0.0, self._batch.expires_at - workflow.now().timestamp())

    def _is_window_over(self, error: Exception) -> bool:
        """Whether a slice ended because nobody took it before the window did."""
        return (
            isinstance(error, ActivityError)
            and isinstance(error.cause, ActivityTimeout)
            and self._seconds_left() == 0
        )

    async def _go_on_in_new_run(self, classes: tuple[BatchClass, ...]) -> None:
        await workflow.wait_condition(workflow.all_handlers_finished)
        state = BatchState(classes=classes, answered=self._answered, failed=self._failed)
        workflow.continue_as_new(
            self._batch.model_copy(update={"state": state}),
            # A pinned batch moves to the build of today here, where nothing is replayed.
            initial_versioning_behavior=(
                workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
                if workflow.info().is_target_worker_deployment_version_changed()
                else None
            ),
        )

    async def _let_go(self) -> None:
        """Have no further line begun, and wait until those that are being made are over."""
        self._cancelled = True
        for slot in list(self._slots.values()):
            slot.cancel()
        while self._slots:
            try:
                await workflow.wait_condition(lambda: not self._slots)
            except asyncio.CancelledError:
                # It is cancelled already.
                continue

    async def _finish(self, error: TaskError | None, *, cancelled: bool) -> BatchOutcome:
        """Write the files and end the row, whatever arrives meanwhile."""
        finishing = workflow.start_activity(
            "batches.finish",
            FinishBatch(
                tenant=self._batch.tenant,
                batch_id=self._batch.batch_id,
                cancelled=cancelled,
                error=error,
            ),
            result_type=BatchOutcome,
            summary="write what came of the lines",
            **policies.BATCH_END,
        )
        await wait_out(finishing)
        outcome: BatchOutcome = finishing.result()
        return outcome


def _is_long() -> bool:
    run = workflow.info()
    return run.is_continue_as_new_suggested() or run.get_current_history_size() > RUN_BYTES
