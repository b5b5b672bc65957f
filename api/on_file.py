"""What came of filing a task: it is on file, it repeats what is, or it was refused."""

from __future__ import annotations

from typing import Any

from api.parts import Parts
from api.problems import ProblemError
from observability.metrics import record_refusal, record_task
from store import money, tasks
from store.identity import Principal
from workflows import errors
from workflows.contracts.request import Asking
from workflows.request_digest import RequestDigest

__all__ = ["essence_of", "on_file"]


def essence_of(request: Asking) -> dict[str, Any]:
    """Return what makes a request the same as an earlier one.

    What it leaves open reads as it always did, so that a repetition is known whatever the default
    of `on_budget` was when it was first sent.
    """
    said: dict[str, Any] = request.model_dump(mode="json")
    if "on_budget" not in request.limits.model_fields_set:
        said["limits"]["on_budget"] = "fail"
    return said


async def on_file(
    parts: Parts,
    caller: Principal,
    verdict: tasks.Submitted | money.Refusal,
    digest: RequestDigest,
) -> tasks.Submitted:
    """Return what was filed, and count it if it is new.

    Raises:
        ProblemError: It was refused, or its idempotency key belongs to another request.
    """
    if isinstance(verdict, money.Refusal):
        record_refusal(verdict.code, verdict.scope)
        raise _refused(verdict)
    # One that was filed before there were keys for digests has a plain one.
    if verdict.conflict and not await tasks.was_filed_with(
        parts.database, caller.organisation_id, verdict.task_id, digest.plain
    ):
        raise ProblemError(
            errors.Conflict,
            "This idempotency key was used for another request; use a new key for a new request.",
        )
    if verdict.created:
        record_task("accepted")
    return verdict


def _refused(refusal: money.Refusal) -> ProblemError:
    """Return what a caller is told whose task cannot be filed."""
    if refusal.code != "budget_exceeded":
        return ProblemError(errors.KeyRefused, "This key was disabled or has expired.")
    return ProblemError(
        errors.BudgetExceeded,
        f"One call may cost up to ${refusal.needed_usd:f}, but of the {refusal.scope}'s budget of "
        f"${refusal.limit_usd:f}, ${refusal.spent_usd:f} is spent and ${refusal.held_usd:f} held.",
        scope=refusal.scope,
        limit_usd=refusal.limit_usd,
        spent_usd=refusal.spent_usd,
        held_usd=refusal.held_usd,
        needed_usd=refusal.needed_usd,
    )
