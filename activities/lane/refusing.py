"""What a caller is told of a call that is not opened."""

from __future__ import annotations

from activities.rate import rate_limited
from store.calls import Unauthenticated as NobodysKey
from store.calls import WrongScope
from store.refusals import Refusal
from workflows.errors import (
    BudgetExceeded,
    Forbidden,
    KeyRefused,
    OverlineError,
    SafetyUnavailable,
    Unauthenticated,
)

__all__ = ["not_admitted", "not_let_in", "unsettled"]


def not_let_in(refused: NobodysKey | WrongScope) -> Forbidden | Unauthenticated:
    """Return what is told of a key that may not call."""
    match refused:
        case NobodysKey("address" | "endpoint"):
            return Forbidden("This key may not be used from this address, or not at this endpoint.")
        case NobodysKey():
            return Unauthenticated("Incorrect API key provided.")
        case WrongScope():
            return Forbidden("The key may not make calls: it lacks the scope 'tasks'.")


def not_admitted(refusal: Refusal) -> OverlineError:
    """Return what is told of a call that a limit, a budget or its key's restrictions refuse."""
    if refusal.code == "rate_limited":
        return rate_limited(refusal)
    if refusal.code == "key_restricted":
        return Forbidden(f"This key may not use this {refusal.scope}.")
    if refusal.code != "budget_exceeded":
        thing, _, state = refusal.code.partition("_")
        return KeyRefused(f"The call was not admitted: the {thing} is {state}.")
    return BudgetExceeded(
        f"The call may cost up to ${refusal.needed_usd:f}, but of the {refusal.scope}'s budget of "
        f"${refusal.limit_usd:f}, ${refusal.spent_usd:f} is spent and ${refusal.held_usd:f} held.",
        scope=refusal.scope,
        limit_usd=f"{refusal.limit_usd:f}",
        spent_usd=f"{refusal.spent_usd:f}",
        held_usd=f"{refusal.held_usd:f}",
        needed_usd=f"{refusal.needed_usd:f}",
    )


def unsettled() -> SafetyUnavailable:
    """Return what is told when the policy was another one at every try."""
    return SafetyUnavailable(
        "The safety policy changes faster than a call can be screened; try again.",
        retry_after_s=1,
    )
