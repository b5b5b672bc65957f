"""Layer 02: may this call happen, and who pays?"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.rate import rate_limited
from activities.webhooks import announce
from observability.metrics import record_refusal, record_settlement, record_task
from observability.spans import current_trace_id
from store import money, steering, tasks
from store.pricing import models_of, worst_case_usd
from store.refusals import Refusal
from workflows.contracts import (
    Admission,
    AdmitInput,
    Charge,
    CloseInput,
    Concluded,
    ConcludeInput,
    SettleInput,
    TaskStatus,
    Usage,
)
from workflows.errors import BudgetExceeded, KeyRefused, OverlineError, TokenLimitReached

__all__ = ["Gateway"]

_CHARS_PER_TOKEN = 4


class Gateway:
    """Admission, settlement, and the end of a task: one atomic statement each."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    @activity.defn(name="gateway.admit")
    @typed_failures
    async def admit(self, call: AdmitInput) -> Admission:
        """Hold the call's worst-case price against every budget above it.

        Raises:
            ApplicationError: `BudgetExceeded` with the numbers, `TokenLimitReached`, or
                `KeyRefused`; not retried, but for what a child's relatives hold. With `paused`
                in its facts, the task waits for the budget. `RateLimited`, tried again when there
                is room.
        """
        catalogue = await self._deps.catalogue.read()
        models = models_of(catalogue, call.route, call.model)
        amount = worst_case_usd(catalogue, models, call.max_tokens)
        verdict = await money.admit(
            self._deps.db,
            organisation_id=call.tenant.organisation_id,
            team_id=call.tenant.team_id,
            key_id=call.tenant.key_id,
            task_id=call.task_id,
            step=call.step,
            call_key=call.call_key,
            amount_usd=amount,
            # Which of them answers is not decided yet: it counts with all that may.
            models=[call.route, *models] if call.model is None else models,
            input_tokens=-(-call.prompt_chars // _CHARS_PER_TOKEN),
            output_tokens=call.max_tokens,
        )
        if isinstance(verdict, Refusal):
            record_refusal(verdict.code, verdict.scope)
            if verdict.code == "rate_limited":
                raise _limited(verdict)
            refusal = _refusal(verdict)
            if verdict.patient and verdict.may_pass_later:
                # Its relatives' calls hold what it needs, and give most of it back.
                raise ApplicationError(
                    refusal.message, type=refusal.type(), category=ApplicationErrorCategory.BENIGN
                )
            if verdict.code == "budget_exceeded" and _pauses(call, verdict):
                raise await self._paused(call, verdict, refusal)
            raise refusal
        if activity.info().attempt > 1:
            # An attempt before this one may have paused the task, and died before it said so.
            await steering.stop_waiting(self._deps.db, call.tenant.organisation_id, call.task_id)
        return Admission(held_usd=amount, usual_output_tokens=verdict.usual_output_tokens)

    async def _paused(
        self, call: AdmitInput, verdict: Refusal, refusal: OverlineError
    ) -> OverlineError | ApplicationError:
        """Pause the task until the budget has room, and return what its workflow is told."""
        waiting = await steering.wait_for_budget(
            self._deps.db,
            call.tenant.organisation_id,
            call.task_id,
            needed_usd=verdict.needed_usd,
            scope=verdict.scope,
        )
        if waiting.number is None:
            return refusal
        return ApplicationError(
            refusal.message,
            refusal.facts | {"paused": waiting.number},
            type=refusal.type(),
            non_retryable=True,
            category=ApplicationErrorCategory.BENIGN,
        )

    @activity.defn(name="gateway.settle")
    @typed_failures
    async def settle(self, call: SettleInput) -> Charge:
        """Write the ledger, release the hold, keep the answer. Idempotent by call key."""
        charge = await money.settle(
            self._deps.db,
            money.Settlement(
                organisation_id=call.tenant.organisation_id,
                task_id=call.task_id,
                step=call.step,
                call_key=call.call_key,
                outcome=call.outcome,
                generation_key=call.generation_key,
                decision=(
                    call.decision.model_dump(
                        mode="json", exclude={"candidates": {"__all__": {"urls"}}}
                    )
                    if call.decision
                    else None
                ),
                provenance=[part.model_dump(mode="json") for part in call.parts] or None,
                tool_call=_chosen(call),
                finish_reason=call.finish_reason,
                cache_write=(
                    money.CacheWrite(key=call.cache_key, collections=list(call.collections))
                    if call.cache_key and call.outcome == "succeeded"
                    else None
                ),
                cache_hit=call.cache_hit,
                trace_id=current_trace_id(),
                finish=(
                    money.TaskFinish(
                        status=_final(call.finish),
                        error=call.error.model_dump(mode="json") if call.error else None,
                    )
                    if call.finish
                    else None
                ),
                unless_told=call.unless_told and call.finish is TaskStatus.SUCCEEDED,
            ),
        )
        record_settlement(call.model, call.outcome, charge)
        if call.finish is not None and not charge.goes_on:
            record_task(call.finish.value)
            await announce(self._deps, call.tenant, call.task_id)
        return Charge(
            billed_usd=charge.billed_usd,
            waste_usd=charge.waste_usd,
            usage=Usage(
                prompt_tokens=charge.prompt_tokens,
                completion_tokens=charge.completion_tokens,
                cached_tokens=charge.cached_tokens,
            ),
            goes_on=charge.goes_on,
        )

    @activity.defn(name="gateway.conclude")
    @typed_failures
    async def conclude(self, task: ConcludeInput) -> Concluded:
        """End a task whose answer was settled before a person let it pass. Idempotent."""
        goes_on = await money.conclude(
            self._deps.db,
            organisation_id=task.tenant.organisation_id,
            task_id=task.task_id,
            step=task.step,
            status=_final(task.finish),
            error=task.error.model_dump(mode="json") if task.error else None,
            unless_told=task.unless_told and task.finish is TaskStatus.SUCCEEDED,
        )
        if not goes_on:
            record_task(task.finish.value)
            await announce(self._deps, task.tenant, task.task_id)
        return Concluded(goes_on=goes_on)

    @activity.defn(name="gateway.close")
    @typed_failures
    async def close(self, task: CloseInput) -> None:
        """End the task's row when no settlement did. Idempotent."""
        await tasks.finish_task(
            self._deps.db,
            task.tenant.organisation_id,
            task.task_id,
            status=_final(task.status),
            answer=None,
            error=task.error.model_dump(mode="json") if task.error else None,
        )
        await announce(self._deps, task.tenant, task.task_id)


def _chosen(call: SettleInput) -> dict[str, Any] | list[dict[str, Any]] | None:
    """Return what the step chose, as its row has it: a list where it could choose several."""
    if call.tool_calls:
        return [chosen.model_dump(mode="json") for chosen in call.tool_calls]
    return call.tool_call.model_dump(mode="json") if call.tool_call else None


def _final(status: TaskStatus) -> Literal["succeeded", "failed", "cancelled"]:
    match status:
        case TaskStatus.SUCCEEDED:
            return "succeeded"
        case TaskStatus.FAILED:
            return "failed"
        case TaskStatus.CANCELLED:
            return "cancelled"
        case _:
            raise ValueError(f"{status!r} does not end a task")


def _pauses(call: AdmitInput, refusal: Refusal) -> bool:
    """Tell whether a task waits for a budget.

    By default only one that has begun, be it with its parent, and not for one of its own: that is
    what its caller would have it cost.
    """
    begun = call.step > 1 or refusal.patient
    others = refusal.scope not in ("task", "parent")
    return call.on_budget == "wait" or (call.on_budget == "pause" and begun and others)


def _limited(refusal: Refusal) -> ApplicationError:
    """Return the refusal of a limit of rate: an appointment, unless it can never be kept."""
    never = bool(refusal.rate.get("never"))
    error = rate_limited(refusal)
    return ApplicationError(
        error.message,
        error.facts,
        type=error.type(),
        non_retryable=never,
        next_retry_delay=None if never else timedelta(seconds=refusal.rate["retry_after_s"]),
        category=ApplicationErrorCategory.BENIGN,
    )


def _refusal(refusal: Refusal) -> BudgetExceeded | KeyRefused | TokenLimitReached:
    if refusal.code == "tokens_exceeded":
        return TokenLimitReached(f"the tokens of the {refusal.scope}'s limits.max_tokens are used")
    if refusal.code != "budget_exceeded":
        thing, _, state = refusal.code.partition("_")
        return KeyRefused(f"the call was not admitted: the {thing} is {state}")
    return BudgetExceeded(
        f"the call may cost up to ${refusal.needed_usd:f}, but of the {refusal.scope}'s budget of "
        f"${refusal.limit_usd:f} ${refusal.spent_usd:f} is spent and ${refusal.held_usd:f} held",
        scope=refusal.scope,
        limit_usd=str(refusal.limit_usd),
        spent_usd=str(refusal.spent_usd),
        held_usd=str(refusal.held_usd),
        needed_usd=str(refusal.needed_usd),
    )
