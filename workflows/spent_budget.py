"""A call that a budget does not cover: the task pauses, and asks again when there is room."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio.exceptions import ActivityError, ApplicationError

from workflows.errors import BudgetExceeded

__all__ = ["SpentBudget", "spent_budget"]


@dataclass(frozen=True)
class SpentBudget:
    """Why a call was not admitted.

    Attributes:
        number: Number of the wish that the task pauses; a newer one that arrived before it wins.
        message: Which budget, with the numbers.
    """

    number: int
    message: str


def spent_budget(error: ActivityError) -> SpentBudget | None:
    """Return the budget that a task waits for; None of any other failure, and of one that ends it.

    Admission has paused the task's row already when it says so: nothing of the call was begun.
    """
    cause = error.cause
    if not isinstance(cause, ApplicationError) or cause.type != BudgetExceeded.type():
        return None
    facts = cause.details[0] if cause.details else None
    number = facts.get("paused") if isinstance(facts, dict) else None
    return None if number is None else SpentBudget(int(number), cause.message)
