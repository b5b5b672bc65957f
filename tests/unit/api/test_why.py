"""The rules of why: each situation has its reason, most likely first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from api.why import explain
from api.why_known import CODES, Known
from api.workflow_look import PendingActivity, PendingWorkflowTask, Poller, WorkflowLook
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
LOOK = WorkflowLook(
    status="running",
    run_id="r",
    queue="q",
    workflow_task=None,
    activities=(GENERATING,),
    pollers=(Poller("q", "workflow", _ago(1)), Poller("q", "activity", _ago(1))),
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
NOBODY = (Poller("q", "workflow", None), Poller("q", "activity", _ago(90)))


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
        (_with(activities=(WAITING,)), ["worker_busy"]),
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
    assert why.moving is ("moving" in codes)


def test_when_the_next_try_is_to_come_it_says_in_how_long() -> None:
    retrying = replace(
        GENERATING, started=False, attempt=5, last_failure="DatabaseDown", waiting_since=_ago(-4)
    )
    (reason,) = explain(_with(activities=(retrying,))).reasons
    assert reason.facts["next_try_s"] == 4
    assert "attempt 5, in 4 s" in reason.text


def test_every_reason_is_documented_and_no_other() -> None:
    told = [row[0] for row in page("docs/04-orchestrator.md").table("reason")]
    assert tuple(told) == CODES
