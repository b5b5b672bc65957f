"""What becomes of a line whose call failed: it is over, or it waits and is tried again.

A limit is no fault of the line, nor is an engine that is away: those are waited for until the
batch's window is over, and a spent budget, if it was said so. An engine that breaks on the very
request is tried three times.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.errors import EngineBusy, EngineError, EngineFailed, EngineUnavailable
from store.batches import OnBudget
from store.errors import Fenced
from workflows.errors import (
    BudgetExceeded,
    Conflict,
    Internal,
    OutageError,
    OverlineError,
    RateLimited,
)

__all__ = ["MOST_STRIKES", "Again", "verdict"]

MOST_STRIKES = 3
BUDGET_AGAIN_S = 15.0
# A call that another process makes is looked at again after this long.
ELSEWHERE_AGAIN_S = 2.0
LONGEST_S = 60.0
#: Of an engine that had begun: the request itself may be at fault.
_MAY_BE_THE_REQUEST = frozenset({"idle_timeout", "deadline", "incomplete"})


@dataclass(frozen=True, slots=True)
class Again:
    """Try it again.

    Attributes:
        after_s: Not before so many seconds.
        reason: What is waited for, in words.
        tried: A call was made and failed, so the next one is another one.
        strike: The request may be at fault itself.
        everybody: Other lines would fare no better: begin none of them meanwhile.
    """

    after_s: float
    reason: str
    tried: bool = False
    strike: bool = False
    everybody: bool = True


def verdict(error: Exception, *, tries: int, strikes: int, on_budget: OnBudget) -> Again | None:
    """Return when a line is tried again; None: its failure is final.

    Args:
        error: Why its call failed, or was not made.
        tries: How many calls of it failed before.
        strikes: How many of those it may have been at fault for.
        on_budget: Whether a spent budget is waited for.
    """
    match error:
        case RateLimited():
            if error.facts.get("never"):
                return None
            after = min(LONGEST_S, max(1.0, float(error.facts.get("retry_after_s") or 1)))
            return Again(after, f"the {error.facts.get('scope')}'s limit")
        case BudgetExceeded():
            return Again(BUDGET_AGAIN_S, "a budget") if on_budget == "wait" else None
        case Conflict() if error.facts.get("code") == "idempotency_key_in_use":
            # The worker that made it died, and its call is carried to its end elsewhere.
            return Again(ELSEWHERE_AGAIN_S, "its call is made elsewhere", everybody=False)
        case Fenced():
            return Again(ELSEWHERE_AGAIN_S, "its call is made elsewhere", everybody=False)
        case Internal() if error.facts.get("code") == "earlier_request_failed":
            return _strike(tries, strikes)
        case OutageError() if error.retryable:
            return Again(_backoff(tries), "a part that is away")
        case OverlineError():
            return None
        case EngineBusy():
            told = error.told.retry_after_s if error.told else None
            after = _backoff(tries) if told is None else min(LONGEST_S, max(0.5, told))
            return Again(after, "the upstream's own limit", tried=True)
        case EngineUnavailable() if not (error.sent or error.code in _MAY_BE_THE_REQUEST):
            return Again(_backoff(tries), "an engine that is away", tried=True)
        case EngineFailed() | EngineUnavailable():
            return _strike(tries, strikes)
        case EngineError():
            return None
        case _:
            # Nobody foresaw it: most likely a defect, which another try may still get around.
            return _strike(tries, strikes)


def _strike(tries: int, strikes: int) -> Again | None:
    if strikes + 1 >= MOST_STRIKES:
        return None
    return Again(_backoff(tries), "another try", tried=True, strike=True, everybody=False)


def _backoff(tries: int) -> float:
    return float(min(LONGEST_S, 2.0 ** min(tries, 6)))
