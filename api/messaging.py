"""Say something to a running task: first the row, then the workflow, whatever dies in between.

A message is queued in the task's own order before the workflow hears of it. One that the workflow
was not told of, because this process died or Temporal was away, is told of by the sweeper of any
API process; and an answer never ends its task while a message is queued.
"""

from __future__ import annotations

import asyncio
import logging

from api.orchestrator import Orchestrator
from api.parts import Parts
from api.problems import ProblemError, invalid
from api.restoring import safety_of
from api.screening import screen_message
from store import messages, tasks
from store.errors import StoreError
from store.identity import Principal
from workflows import errors

__all__ = ["require_words", "say_to_task", "sweep_unsent_messages"]

log = logging.getLogger("overline.api")

_SWEEP_EVERY_S = 5.0


def require_words(content: str) -> None:
    """Refuse a blank message; the schema can only see that it is not empty.

    Raises:
        ProblemError: 422.
    """
    if not content.strip():
        raise invalid("/content", "too_short", "The message must not be blank.")


async def say_to_task(
    parts: Parts, caller: Principal, task: tasks.Task, content: str, idempotency_key: str | None
) -> messages.Sent:
    """Queue a message to a task and tell its workflow.

    Raises:
        ProblemError: The task has ended, or the idempotency key was used for another text (409);
            or the task's safety policy does not let it in (400, 403, 503).
    """
    require_words(content)
    organisation, task_id = caller.organisation_id, task.task_id
    if (safety := safety_of(task.input)) is not None:
        content = await screen_message(parts, caller, safety, task_id, content)
    sent = await messages.send_message(
        parts.database,
        organisation,
        caller.key_id,
        task_id,
        content=content,
        idempotency_key=idempotency_key,
    )
    if sent.conflict:
        raise ProblemError(
            errors.Conflict,
            "This idempotency key was used for another message; use a new key for a new message.",
        )
    if sent.number is None:
        raise ProblemError(
            errors.Conflict, "The task has ended: there is nobody to read it. Fork it instead."
        )
    try:
        await _tell(parts, messages.Unsent(organisation, task_id, sent.number))
    except ProblemError:
        # It is queued: the sweeper tells of it when Temporal is back.
        log.warning("a message could not be told of yet", extra={"task_id": str(task_id)})
    return sent


async def sweep_unsent_messages(parts: Parts) -> None:
    """Tell of the messages that nobody has told of; runs for ever."""
    while True:
        await asyncio.sleep(_SWEEP_EVERY_S)
        try:
            unsent = await messages.unsent_messages(parts.database)
        except StoreError:
            continue
        for message in unsent:
            try:
                await _tell(parts, message)
            except Exception as exc:
                # One that cannot be told of must not keep the others from it.
                log.warning("a message could not be told of: %s", type(exc).__name__)


async def _tell(parts: Parts, message: messages.Unsent) -> None:
    """Tell the workflow, if there is one; a task that has not begun hears of it when it has."""
    told = await Orchestrator(parts.temporal, parts.settings).tell_message(
        message.task_id, message.number
    )
    if told:
        await messages.mark_sent(
            parts.database, message.organisation_id, message.task_id, message.number
        )
