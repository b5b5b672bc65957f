"""Sessions: conversations, each turn of which is a task."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from api.authentication import Caller, parts_of
from api.json_body import json_body, request_body
from api.message_views import (
    MessageRequest,
    SessionLinks,
    SessionPage,
    SessionSummary,
    SessionView,
    TurnAccepted,
    TurnList,
    TurnView,
)
from api.openapi import answers
from api.orchestrator import web_ui_url
from api.parts import Parts
from api.problems import not_found
from api.restoring import redactions_for, restored
from api.routes.tasks import IdempotencyKey
from api.session_stream import SessionReader
from api.sessions import begin, close, say_in_session
from api.task_projection import failure_view
from api.task_views import Failure
from observability.metrics import sse_reader
from store import sessions
from store.identity import Principal
from workflows.contracts import SessionRequest, session_workflow_id

__all__ = ["router"]

router = APIRouter(tags=["sessions"])

PartsOf = Annotated[Parts, Depends(parts_of)]

_EXAMPLE = {"system": "You are brief.", "limits": {"max_cost_usd": "0.05"}, "user": "ada"}
_SAID = {"content": "What is 12*7?"}
_RECONNECT_MS = 500


@router.post(
    "/v1/sessions",
    status_code=201,
    responses=answers(404, 409, body=True),
    openapi_extra=request_body(SessionRequest, _EXAMPLE),
    summary="Begin a session",
)
async def begin_session(
    caller: Caller,
    parts: PartsOf,
    body: Annotated[SessionRequest, Depends(json_body(SessionRequest))],
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> SessionView:
    """Begin a conversation. Names in it are looked up now and stay what they are.

    Every message of it will be a task that begins with what was said before. Limits hold for each
    turn by itself.
    """
    opened = await begin(parts, caller, body, idempotency_key)
    if not opened.created:
        response.headers["Idempotent-Replayed"] = "true"
    response.headers["Location"] = f"/v1/sessions/{opened.session_id}"
    return _view(parts, await _find(parts, caller, opened.session_id))


@router.get("/v1/sessions", responses=answers(), summary="List sessions")
async def list_sessions(
    caller: Caller,
    parts: PartsOf,
    limit: Annotated[int, Query(ge=1, le=200, description="Sessions on a page, at most.")] = 50,
    cursor: Annotated[
        UUID | None, Query(description="`next_cursor` of the page before; none: the newest.")
    ] = None,
) -> SessionPage:
    """List the organisation's sessions, newest first."""
    page = await sessions.list_sessions(
        parts.database, caller.organisation_id, cursor=cursor, limit=limit
    )
    return SessionPage(
        sessions=tuple(SessionSummary(**_facts(each)) for each in page.sessions),
        next_cursor=str(page.next_cursor) if page.next_cursor else None,
    )


@router.get("/v1/sessions/{session_id}", responses=answers(404), summary="Read a session")
async def get_session(caller: Caller, parts: PartsOf, session_id: UUID) -> SessionView:
    """Read a session: what its turns are asked with, and how far it is."""
    return _view(parts, await _find(parts, caller, session_id))


@router.delete("/v1/sessions/{session_id}", responses=answers(404), summary="Close a session")
async def close_session(caller: Caller, parts: PartsOf, session_id: UUID) -> SessionView:
    """End a session for new messages. Those in it are still answered; all of it can be read."""
    await _find(parts, caller, session_id)
    await close(parts, caller, session_id)
    return _view(parts, await _find(parts, caller, session_id))


@router.post(
    "/v1/sessions/{session_id}/messages",
    status_code=202,
    responses=answers(404, 409, body=True),
    openapi_extra=request_body(MessageRequest, _SAID),
    summary="Say something in a session",
)
async def say(
    caller: Caller,
    parts: PartsOf,
    session_id: UUID,
    body: Annotated[MessageRequest, Depends(json_body(MessageRequest))],
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> TurnAccepted:
    """Say something. It is answered when everything said before it has had its turn.

    The turn is a task, paid for by this key; the checks of a submission are made when it comes. A
    turn that fails or is refused does not end the session. A closed session is a 409.
    """
    await _find(parts, caller, session_id)
    said = await say_in_session(parts, caller, session_id, body.content, idempotency_key)
    if not said.created:
        response.headers["Idempotent-Replayed"] = "true"
    return TurnAccepted(
        session_id=session_id,
        number=said.number or 0,
        task_id=said.task_id,
        replayed=not said.created,
    )


@router.get(
    "/v1/sessions/{session_id}/messages", responses=answers(404), summary="Read a conversation"
)
async def list_messages(
    caller: Caller,
    parts: PartsOf,
    session_id: UUID,
    limit: Annotated[int, Query(ge=1, le=200, description="Messages on a page, at most.")] = 50,
    cursor: Annotated[
        int, Query(ge=0, le=2**31 - 1, description="`next_cursor` of the page before.")
    ] = 0,
) -> TurnList:
    """Read both sides of a conversation: every message with its answer, oldest first."""
    session = await _find(parts, caller, session_id)
    found = await sessions.list_messages(
        parts.database, caller.organisation_id, session_id, after=cursor, limit=limit + 1
    )
    views = tuple(_turn_view(each) for each in found[:limit])
    scope = session_id if session.team_id == caller.team_id else None
    redactions = await redactions_for(parts.screening, caller.organisation_id, scope, views)
    return TurnList(
        session_id=session_id,
        messages=restored(views, redactions),
        next_cursor=found[limit - 1].number if len(found) > limit else None,
    )


async def _visible(session_id: UUID, caller: Caller, parts: PartsOf) -> sessions.Session:
    """Dependency: the session, or 404 before the stream begins."""
    return await _find(parts, caller, session_id)


@router.get(
    "/v1/sessions/{session_id}/events",
    response_class=EventSourceResponse,
    responses=answers(404)
    | {
        200: {
            "description": "Server-sent events of all turns, one after the other. `id` is "
            "`turn:seq`: send the last one seen as `Last-Event-ID` to go on after it. `event` is "
            "the type, `data` a `SessionEvent`. The stream ends with `session.closed`."
        }
    },
    summary="Watch a session",
)
async def stream_events(
    session: Annotated[sessions.Session, Depends(_visible)],
    caller: Caller,
    parts: PartsOf,
    from_message: Annotated[
        int,
        Query(ge=1, le=2**31 - 1, description="Number of the message to begin with."),
    ] = 1,
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            pattern=r"^[1-9][0-9]{0,8}:[0-9]{1,18}$",
            description="Id of the last event seen (`turn:seq`); it wins over `from_message`.",
        ),
    ] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Stream a conversation as it goes on: what is said, and the events of every turn's task."""
    turn, seq = from_message, -1
    if last_event_id is not None:
        turn, seq = (int(part) for part in last_event_id.split(":"))
    yield ServerSentEvent(comment="open", retry=_RECONNECT_MS)
    reader = SessionReader(
        parts,
        caller.organisation_id,
        session.session_id,
        turn,
        seq,
        restores=session.team_id == caller.team_id,
    )
    with sse_reader():
        async for event in reader.events():
            yield event


async def _find(parts: Parts, caller: Principal, session_id: UUID) -> sessions.Session:
    found = await sessions.get_session(parts.database, caller.organisation_id, session_id)
    if found is None:
        raise not_found("session")
    return found


def _facts(found: sessions.Session) -> dict[str, Any]:
    return {
        "id": found.session_id,
        "state": "open" if found.closed_at is None else "closed",
        "agent": found.request.get("agent"),
        "key_id": found.key_id,
        "messages": found.messages,
        "created_at": found.created_at,
        "closed_at": found.closed_at,
    }


def _view(parts: Parts, found: sessions.Session) -> SessionView:
    path = f"/v1/sessions/{found.session_id}"
    return SessionView(
        **_facts(found),
        asked_with=SessionRequest.model_validate(found.request),
        links=SessionLinks(
            session=path,
            messages=f"{path}/messages",
            events=f"{path}/events",
            web_ui=web_ui_url(parts.settings, session_workflow_id(found.session_id)),
        ),
    )


def _turn_view(found: sessions.SessionMessage) -> TurnView:
    error: Failure | None = None
    if found.code is not None:
        error = Failure(code=found.code, message=found.detail or "", step=None, layer=None)
    elif found.error is not None:
        error = failure_view(found.error)
    return TurnView(
        number=found.number,
        content=found.content,
        key_id=found.key_id,
        state=found.state,
        task_id=found.task_id,
        answer=found.answer,
        error=error,
        created_at=found.created_at,
        answered_at=found.answered_at,
    )
