"""Temporal failures in the words of the task: which layer, which step, which documented code."""

from __future__ import annotations

from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from workflows.contracts import TaskError
from workflows.errors import ALL_ERRORS, Internal

__all__ = ["describe"]

_CODES = {error.type(): error.code for error in ALL_ERRORS}


def _told(cause: ApplicationError) -> str:
    """The message, with what an upstream said of the request: its caller may read that."""
    facts = cause.details[0] if cause.details else None
    said = facts.get("said") if isinstance(facts, dict) else None
    return f"{cause.message}: {said}" if said else cause.message


def describe(error: BaseException, *, step: int | None) -> TaskError:
    """Return the task's error for a failure met in workflow code."""
    layer: str | None = None
    cause: BaseException = error
    if isinstance(error, ActivityError):
        layer = error.activity_type
        cause = error.cause or error
    if isinstance(cause, ActivityTimeout) and isinstance(cause.cause, ApplicationError):
        # It was tried until the time was up: what stood in the way says more than the clock.
        cause = cause.cause
    if isinstance(cause, ApplicationError) and cause.type in _CODES:
        return TaskError(
            code=_CODES[cause.type or ""], message=_told(cause), step=step, layer=layer
        )
    if isinstance(cause, ActivityTimeout):
        return TaskError(
            code=Internal.code, message=f"{layer} ran out of time", step=step, layer=layer
        )
    # The text of an unforeseen exception may hold what a caller wrote, so only its type is told.
    kind = cause.type if isinstance(cause, ApplicationError) else type(cause).__name__
    return TaskError(code=Internal.code, message=f"{kind}", step=step, layer=layer)
