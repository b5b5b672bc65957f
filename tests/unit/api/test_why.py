"""The rules of why: each situation has its reason, most likely first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from api.why import explain
from api.why_known import CODES, Known
from api.workflow_look import (
    Asker,
    PendingActivity,
    PendingWorkflowTask,
    Poller,
    Version,
    WorkflowLook,
)
from store.progress import BudgetLeft, Progress
from tests.unit.docs.pages import page

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def _ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


PROGRESS = Progress(
    step=2,
    step_status="running",
    model="m",
    generation="running",
    attempt=1,
    tokens=17,
    step_started_at=_ago(3),
    attempt_started_at=_ago(3),
    last_token_at=_ago(0.1),
    budgets=(),
    own_hold_usd=Decimal("0.4"),
    needed_usd=Decimal("0.4"),
)
GENERATING = PendingActivity(
    name="generation.generate",
    started=True,
    attempt=1,
    last_failure=None,
    waiting_since=_ago(3),
    queue="q",
)
OLD, NEW = Version("overline", "old"), Version("overline", "new")


def _poller(kind: str, seconds: float, version: Version | None = None, **more: object) -> Poller:
    """A queue that one worker asks, so many seconds ago for the last time."""
    queue = str(more.pop("queue", "q"))
    asker = Asker("1@here", version, _ago(seconds))
    return Poller(queue, kind, (asker,), **more)  # type: ignore[arg-type]


LOOK = WorkflowLook(
    status="running",
    run_id="r",
    queue="q",
    workflow_task=None,
    activities=(GENERATING,),
    pollers=(_poller("workflow", 1), _poller("activity", 1)),
)
KNOWN = Known(
    status="running",
    ended=False,
    seconds=20,
    now=NOW,
    progress=PROGRESS,
    workflow=LOOK,
    temporal=True,
    engine=None,
    task_id="t",
)
WAITING = replace(GENERATING, started=False, waiting_since=_ago(8))
DECIDING = PendingWorkflowTask(started=False, attempt=1, waiting_since=_ago(8))
NOBODY = (Poller("q", "workflow"), _poller("activity", 90))
ASSEMBLING = replace(WAITING, name="context.assemble")
MODEL_QUEUE = replace(WAITING, queue="q-model-m")


def _line(seconds: float, **more: object) -> Known:
    """A generation that waits in its model's queue, whose worker decides things meanwhile."""
    line = _poller("activity", seconds, queue="q-model-m", waiting=7, **more)
    return _with(activities=(MODEL_QUEUE,), pollers=(_poller("workflow", 50), line))


def _versions(pinned: Version | None, *, current: Version, served: Version) -> Known:
    """A decision that waits where workers of one version ask."""
    queue = _poller("workflow", 1, served, current=current)
    return _with(activities=(), workflow_task=DECIDING, pinned=pinned, pollers=(queue,))


def _with(**changes: object) -> Known:
    return replace(KNOWN, workflow=replace(LOOK, **changes))  # type: ignore[arg-type]


def _progress(**changes: object) -> Known:
    return replace(KNOWN, progress=replace(PROGRESS, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "codes"),
    [
        (KNOWN, ["moving"]),
        (replace(KNOWN, status="failed", ended=True), ["ended"]),
        (replace(KNOWN, temporal=False, workflow=None), ["orchestrator_down"]),
        (replace(KNOWN, workflow=None), ["not_started"]),
        (_with(status="terminated"), ["ended_outside"]),
        (replace(KNOWN, status="paused"), ["paused"]),
        (_with(activities=(WAITING,), pollers=NOBODY), ["no_worker"]),
        (_with(activities=(ASSEMBLING,)), ["worker_busy"]),
        (_with(activities=(WAITING,)), ["waiting_for_slot"]),
        # With all slots taken a worker asks for no more calls, but for decisions.
        (_line(50), ["waiting_for_slot"]),
        (_line(1, limit_per_s=2.0), ["queue_limited"]),
        (
            _with(
                activities=(MODEL_QUEUE,),
                pollers=(_poller("workflow", 80), _line(50).workflow.pollers[1]),
            ),
            ["no_worker"],
        ),
        (_versions(OLD, current=NEW, served=NEW), ["version_unserved"]),
        (_versions(OLD, current=NEW, served=OLD), ["worker_busy"]),
        (_versions(None, current=NEW, served=OLD), ["version_unserved"]),
        (_with(activities=(), workflow_task=DECIDING, pollers=NOBODY), ["no_worker"]),
        (
            _with(activities=(), workflow_task=replace(DECIDING, attempt=3)),
            ["workflow_task_failing"],
        ),
        (_with(problems=("category=WorkflowTaskFailed",)), ["workflow_task_failing"]),
        (
            _with(activities=(replace(GENERATING, attempt=4, last_failure="EngineDown"),)),
            ["activity_retrying"],
        ),
        (replace(KNOWN, engine="does not answer"), ["engine_down"]),
        (replace(KNOWN, approvals=((2, "mail.send"),)), ["waiting_for_person"]),
        (_progress(last_token_at=_ago(30)), ["engine_silent"]),
        (_progress(generation="finished", last_token_at=_ago(30)), ["moving"]),
        (_with(activities=(), children=("c",)), ["children_running"]),
        (
            _with(children=("c",), problems=("category=x",)),
            ["workflow_task_failing", "children_running"],
        ),
        (replace(_with(children=("c",)), status="paused"), ["paused", "children_running"]),
        (replace(KNOWN, deadline_seconds=30), ["moving", "deadline"]),
        (replace(KNOWN, deadline_seconds=3000), ["moving"]),
        # Its own hold comes back before the next call; another task's does not.
        (_progress(budgets=(BudgetLeft("key", Decimal(1), Decimal(0), Decimal(1)),)), ["moving"]),
        (
            _progress(budgets=(BudgetLeft("key", Decimal(1), Decimal("0.1"), Decimal(1)),)),
            ["moving", "budget_held"],
        ),
        (
            replace(
                _with(
                    activities=(replace(GENERATING, attempt=2, last_failure="Timeout"),),
                    workflow_task=DECIDING,
                    pollers=NOBODY,
                ),
                status="paused",
                engine="does not answer",
            ),
            ["paused", "no_worker", "engine_down", "activity_retrying"],
        ),
    ],
)
def test_a_situation_has_its_reasons_in_their_order(known: Known, codes: list[str]) -> None:
    why = explain(known)
    assert [reason.code for reason in why.reasons] == codes
    assert why.moving is ("moving" in codes or codes == ["children_running"])


def test_when_the_next_try_is_to_come_it_says_in_how_long() -> None:
    retrying = replace(
        GENERATING, started=False, attempt=5, last_failure="DatabaseDown", waiting_since=_ago(-4)
    )
    (reason,) = explain(_with(activities=(retrying,))).reasons
    assert reason.facts["next_try_s"] == 4
    assert "attempt 5, in 4 s" in reason.text


def test_a_task_whose_version_nobody_serves_is_told_how_it_is_moved() -> None:
    (reason,) = explain(_versions(OLD, current=NEW, served=NEW)).reasons
    assert reason.facts["build"] == "old"
    assert "overline worker-version move BUILD --task t --deployment overline" in reason.advice


def test_a_limited_queue_says_how_many_wait_and_how_fast_they_go() -> None:
    (reason,) = explain(_line(1, limit_per_s=2.0)).reasons
    assert (reason.facts["waiting"], reason.facts["limit_per_s"]) == (7, 2.0)


def test_every_reason_is_documented_and_no_other() -> None:
    told = [row[0] for row in page("docs/04-orchestrator.md").table("reason")]
    assert tuple(told) == CODES
