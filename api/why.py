"""Why is this task not moving? The rules, from what is known to plain words. Pure.

Every reason has a stable code, a sentence, what to do about it, and its facts: names, numbers and
times. Nothing of what a task says or was asked is among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from api.steering_views import Why, WhyReason
from api.why_known import CODES, Known, say, since
from api.why_untaken import untaken
from api.workflow_look import PendingActivity, WorkflowLook

__all__ = ["explain"]

# An engine that makes no token for this long is silent.
_SILENT_S = 10.0
_NEAR_DEADLINE_S = 60.0


def explain(known: Known) -> Why:
    """Return the reasons, most likely first; there is always at least one."""
    found = sorted(_reasons(known), key=lambda reason: CODES.index(reason.code))
    # What is near a limit moves all the same.
    others = {reason.code for reason in found} - {"deadline", "budget_held"}
    moving = bool(others) and others <= {"moving", "children_running"}
    return Why(status=known.status, moving=moving, reasons=tuple(found))


def _reasons(known: Known) -> Iterator[WhyReason]:
    if known.ended:
        yield _ended(known)
        return
    if not known.temporal:
        yield say(
            "orchestrator_down",
            "Temporal does not answer. Nothing of the task is lost; it goes on when it is back.",
            "Look at `overline status` and `overline logs temporal`.",
        )
        return
    look = known.workflow
    if look is None:
        yield say(
            "not_started",
            f"It was accepted {known.seconds:.0f} s ago and its workflow is not started.",
            "Any API process starts it within some seconds; if not, look at `overline logs api`.",
            seconds=round(known.seconds),
        )
        return
    if look.status != "running":
        yield say(
            "ended_outside",
            f"Its workflow is {look.status} in Temporal, and its row is about to say so.",
            "Read the task again in some seconds.",
            workflow=look.status,
        )
        return
    stuck = list(_in_the_way(known, look))
    yield from stuck
    yield from _limits(known)
    if look.children:
        yield _waits_for_children(known, look)
    elif not stuck:
        yield _moving(known, look)


def _in_the_way(known: Known, look: WorkflowLook) -> Iterator[WhyReason]:
    if known.status == "paused" and known.spent is not None:
        yield _spent(known, known.spent)
    elif known.status == "paused":
        running = bool(look.activities)
        yield say(
            "paused",
            f"It is paused; step {known.progress.step} is still being finished."
            if running
            else f"It is paused after step {known.progress.step}.",
            f"Let it go on: `overline resume {known.task_id}`.",
            step=known.progress.step,
        )
    task = look.workflow_task
    if look.problems or (task is not None and task.attempt > 1):
        attempt = task.attempt if task is not None else 0
        yield say(
            "workflow_task_failing",
            f"The workflow's own code fails on the worker (attempt {attempt}), and is tried again.",
            "It replays differently, or meets a defect: `overline replay "
            f"{known.task_id}` shows where. Deploy code that replays; the task then goes on.",
            attempt=attempt,
            problems=", ".join(look.problems) or None,
        )
    elif task is not None and not task.started:
        yield from untaken(known, look, look.queue, "workflow", task.waiting_since, "its next step")
    for step, tool in known.approvals:
        yield say(
            "waiting_for_person",
            f"In step {step}, the call of tool {tool} waits until a person decides.",
            f"`GET /v1/tasks/{known.task_id}/approvals` lists it: approve or refuse it there.",
            step=step,
            tool=tool,
        )
    for activity in look.activities:
        if activity.last_failure is not None and activity.attempt > 1:
            yield _retrying(known, activity)
        elif not activity.started:
            yield from untaken(
                known, look, activity.queue, "activity", activity.waiting_since, activity.name
            )
    if any(each.name == "generation.generate" for each in look.activities):
        yield from _engine(known)


def _spent(known: Known, budget: Mapping[str, Any]) -> WhyReason:
    whose = " ".join(filter(None, (budget["scope"], budget.get("subject"))))
    figures = (
        f" of ${budget['limit_usd']}, ${budget['spent_usd']} is spent and ${budget['held_usd']} "
        "held"
        if "limit_usd" in budget
        else " is spent"
    )
    return say(
        "budget_exhausted",
        f"It is paused after step {known.progress.step}: its next call may cost up to "
        f"${budget['needed_usd']}, but the budget of {whose}{figures}.",
        "Raise it, `overline budget set`: the task then goes on within seconds, as it does when a "
        "new period begins.",
        step=known.progress.step,
        **{name: value for name, value in budget.items() if name != "reason"},
    )


def _retrying(known: Known, activity: PendingActivity) -> WhyReason:
    wait = since(known, activity.waiting_since)
    next_s = 0 if activity.started or wait is None else max(0, round(-wait))
    when = "now" if next_s == 0 else f"in {next_s} s"
    return say(
        "activity_retrying",
        f"{activity.name} failed with {activity.last_failure} and is tried again: attempt "
        f"{activity.attempt}, {when}.",
        _ADVICE.get(activity.last_failure or "", "Its history in the Web UI has every attempt."),
        activity=activity.name,
        failure=activity.last_failure,
        attempt=activity.attempt,
        next_try_s=next_s,
        step=known.progress.step,
    )


_ADVICE = {
    "EngineDown": "The engine behind the model is broken or away: `overline logs triton`.",
    "DatabaseDown": "The worker cannot reach Postgres: `overline status`.",
    "BudgetExceeded": "Raise it, or wait for calls beside it to end: `overline budget list`.",
    "RateLimited": "A limit of rate is reached; it goes on by itself: `overline limit list`.",
    "Timeout": "A worker died or hung in the middle; another one goes on where it was.",
    "Internal": "A defect of Overline's: `overline logs` has its type.",
}


def _engine(known: Known) -> Iterator[WhyReason]:
    if known.engine is not None:
        yield say(
            "engine_down",
            f"No language model answers behind Triton: it {known.engine}.",
            "Look at `overline status` and `overline logs triton`; the generation goes on where "
            "it was when the engine is back.",
            step=known.progress.step,
        )
        return
    progress = known.progress
    last = progress.last_token_at or progress.attempt_started_at
    silent = since(known, last)
    if progress.generation == "running" and silent is not None and silent > _SILENT_S:
        yield say(
            "engine_silent",
            f"Model {progress.model} has made no token of step {progress.step} for {silent:.0f} s "
            f"({progress.tokens} so far).",
            "The engine's queue may be long, or its process hangs: `overline logs triton`.",
            step=progress.step,
            model=progress.model,
            tokens=progress.tokens,
            silent_s=round(silent),
        )


def _limits(known: Known) -> Iterator[WhyReason]:
    if known.deadline_seconds is not None:
        left = known.deadline_seconds - known.seconds
        if left < _NEAR_DEADLINE_S:
            yield say(
                "deadline",
                f"Its deadline of {known.deadline_seconds} s is reached in {max(left, 0):.0f} s.",
                "It then ends with OVL-3005; fork it with a longer limits.deadline_seconds.",
                left_s=round(left),
                deadline_seconds=known.deadline_seconds,
            )
    progress = known.progress
    for budget in progress.budgets:
        # The hold of its own call is released before the next one is admitted.
        held = budget.held_usd - progress.own_hold_usd
        if budget.spent_usd + held + progress.needed_usd > budget.cap_usd:
            yield say(
                "budget_held",
                f"Its next call may cost up to ${progress.needed_usd:f}, but of the "
                f"{budget.scope}'s budget of ${budget.cap_usd:f}, ${budget.spent_usd:f} is spent "
                f"and ${held:f} held by other calls.",
                "Raise the budget, or wait for the calls in flight; else it ends with OVL-3001.",
                scope=budget.scope,
                limit_usd=budget.cap_usd,
                spent_usd=budget.spent_usd,
                held_usd=held,
                needed_usd=progress.needed_usd,
            )


def _waits_for_children(known: Known, look: WorkflowLook) -> WhyReason:
    count, first = len(look.children), look.children[0]
    return say(
        "children_running",
        f"It waits for {count} task(s) that it started, such as {first}.",
        f"Ask the same of it: `overline why {first}`; `overline tree {known.task_id}` lists all.",
        children=count,
        child=first,
    )


def _moving(known: Known, look: WorkflowLook) -> WhyReason:
    progress = known.progress
    doing = ", ".join(sorted({activity.name for activity in look.activities})) or "deciding"
    model = f", model {progress.model}" if progress.model else ""
    return say(
        "moving",
        f"It is moving: step {progress.step}{model}, {doing}, {progress.tokens} tokens of it so "
        "far.",
        f"Watch it: `overline watch {known.task_id}`.",
        step=progress.step,
        model=progress.model,
        tokens=progress.tokens,
        doing=doing,
    )


def _ended(known: Known) -> WhyReason:
    error = known.error or {}
    code, step, layer = (error.get(name) for name in ("code", "step", "layer"))
    how = f"It has ended: {known.status}"
    if code:
        how += f" with {code}" + (f" in step {step}" if step else "")
    return say(
        "ended",
        how + ".",
        f"docs/errors.md explains {code}; `overline fork {known.task_id}` reruns it from a step."
        if code
        else f"Read it: `overline watch {known.task_id}`.",
        error=code,
        step=step,
        layer=layer,
    )
