"""Sessions: begun, spoken in and closed; their turns are taken by a workflow.

What is said is on file, numbered, before the workflow hears of it. What it was not told of, because
this process died or Temporal was away, it is told of by the sweeper of any API process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from uuid import UUID

from uuid_utils.compat import uuid7

from api.messaging import require_words
from api.orchestrator import Orchestrator
from api.parts import Parts
from api.problems import ProblemError
from api.screening import screen_message
from api.submission import resolve
from store import sessions
from store.errors import StoreError
from store.identity import Principal
from workflows import errors
from workflows.contracts import Safety, SessionInput, SessionRequest

__all__ = ["begin", "close", "say_in_session", "sweep_unsent_sessions"]

log = logging.getLogger("overline.api")

_SWEEP_EVERY_S = 5.0


async def begin(
    parts: Parts, caller: Principal, request: SessionRequest, idempotency_key: str | None
) -> sessions.Opened:
    """Begin a session. Names in the request are looked up now, as for a schedule.

    Raises:
        ProblemError: 404 or 422 as a submission; 409 for an idempotency key used otherwise.
    """
    resolved, first_max_tokens = await resolve(parts, caller, request.asking("-"))
    opened = await sessions.open_session(
        parts.database,
        caller,
        session_id=uuid7(),
        idempotency_key=idempotency_key,
        request=request.model_dump(mode="json", exclude_unset=True),
        resolved=resolved.model_dump(mode="json", exclude={"input", "messages"}),
        first_max_tokens=first_max_tokens,
    )
    if opened.conflict:
        raise _used_otherwise()
    return opened


async def say_in_session(
    parts: Parts, caller: Principal, session_id: UUID, content: str, idempotency_key: str | None
) -> sessions.Said:
    """Say something in a session and tell its workflow.

    Raises:
        ProblemError: The session is closed, or the idempotency key was used for another text (409).
    """
    require_words(content)
    said = await _said(parts, caller, session_id, content, idempotency_key)
    if said.conflict:
        raise _used_otherwise()
    if said.number is None:
        raise ProblemError(errors.Conflict, "The session is closed: begin another one.")
    if said.task_id is None:
        try:
            await _tell(
                parts,
                sessions.Unsent(caller.organisation_id, caller.team_id, session_id, said.number),
            )
        except ProblemError:
            # It is on file: the sweeper tells of it when Temporal is back.
            log.warning("a session could not be told yet", extra={"session_id": str(session_id)})
    return said


async def _said(
    parts: Parts, caller: Principal, session_id: UUID, content: str, idempotency_key: str | None
) -> sessions.Said:
    """Put a message on file as the policy lets it be kept; the turn's task is screened again."""
    organisation = caller.organisation_id

    async def say() -> sessions.Said:
        held = parts.screening.policies.of_team(organisation, caller.team_id)
        version, kept = (held.version if held else 0), content
        if version:
            safety = Safety(version=version, scope=session_id)
            kept = await screen_message(parts, caller, safety, session_id, content, may_wait=True)
        return await sessions.say(
            parts.database,
            caller,
            session_id,
            content=kept,
            idempotency_key=idempotency_key,
            policy=version,
        )

    return await parts.screening.filed(organisation, caller.team_id, say)


async def close(parts: Parts, caller: Principal, session_id: UUID) -> None:
    """End a session for new messages; those in it are still answered. Twice is no error."""
    await sessions.close_session(parts.database, caller.organisation_id, session_id)
    # Its workflow need not wait any longer; if it does, it ends by itself.
    with contextlib.suppress(ProblemError):
        await Orchestrator(parts.temporal, parts.settings).tell_session(session_id)


async def sweep_unsent_sessions(parts: Parts) -> None:
    """Tell of what nobody has told of; runs for ever."""
    while True:
        await asyncio.sleep(_SWEEP_EVERY_S)
        try:
            unsent = await sessions.unsent_sessions(parts.database)
        except StoreError:
            continue
        for session in unsent:
            try:
                await _tell(parts, session)
            except Exception as exc:
                # One that cannot be told must not keep the others from it.
                log.warning("a session could not be told: %s", type(exc).__name__)


async def _tell(parts: Parts, session: sessions.Unsent) -> None:
    await Orchestrator(parts.temporal, parts.settings).wake_session(
        SessionInput(
            organisation_id=session.organisation_id,
            session_id=session.session_id,
            idle_seconds=parts.settings.session_idle_seconds,
        ),
        session.number,
        team_id=session.team_id,
    )
    await sessions.mark_sent(
        parts.database, session.organisation_id, session.session_id, session.number
    )


def _used_otherwise() -> ProblemError:
    return ProblemError(
        errors.Conflict,
        "This idempotency key was used for another request; use a new key for a new request.",
    )
