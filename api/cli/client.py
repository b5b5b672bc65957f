"""The command line's way to the API: one client, friendly errors, a stream that reconnects."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Self
from uuid import UUID

import httpx2

from settings import Settings
from workflows import errors

__all__ = ["ApiClient", "ApiRefusal", "ApiUnreachable", "TaskEvent"]

#: A 15 s heartbeat comes on every stream; twice that without a byte is a dead connection.
_STREAM_TIMEOUT_S = 35.0
_FINAL = frozenset({"task.succeeded", "task.failed", "task.cancelled"})


class ApiUnreachable(Exception):
    """The API does not answer at its address."""


class ApiRefusal(Exception):
    """The API answered with a problem document.

    Attributes:
        status: HTTP status code.
        problem: The document; see `api.problems.Problem`.
    """

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(str(problem.get("detail") or problem.get("title") or f"HTTP {status}"))
        self.status = status
        self.problem = dict(problem)


@dataclass(frozen=True)
class TaskEvent:
    """One event of a task's stream.

    Attributes:
        id: What to send as `Last-Event-ID` to go on after it.
        type: Kind of the event, such as "text" or "step.completed".
        step: Step it belongs to; 0 for the task itself.
        payload: Facts of this kind of event.
        turn: In the stream of a session: number of the message whose turn it is.
    """

    id: str
    type: str
    step: int
    payload: dict[str, Any]
    turn: int = 0

    @property
    def final(self) -> bool:
        """Whether nothing follows."""
        return self.type in _FINAL


class ApiClient:
    """A connection to the API with the key of the settings.

    Args:
        settings: `api_url` and `api_key` are used.
        timeout_s: Time limit of a request, in seconds.

    Raises:
        ApiRefusal: The key cannot be one.
    """

    def __init__(self, settings: Settings, *, timeout_s: float = 30.0) -> None:
        headers = {"Accept": "application/json", **_authorization(settings)}
        self._url = settings.api_url
        self._http = httpx2.Client(base_url=settings.api_url, headers=headers, timeout=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """GET a JSON document.

        Raises:
            ApiRefusal: The API refused.
            ApiUnreachable: It does not answer.
        """
        kept = {name: value for name, value in (params or {}).items() if value is not None}
        return self._answer("GET", path, params=kept)

    def post(
        self, path: str, body: Any | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """POST a JSON document; raises as `get` does."""
        return self._answer("POST", path, json=body, headers=dict(headers or {}))

    def put(self, path: str, body: Any) -> Any:
        """PUT a JSON document; raises as `get` does."""
        return self._answer("PUT", path, json=body)

    def patch(self, path: str, body: Any) -> Any:
        """PATCH a resource; raises as `get` does."""
        return self._answer("PATCH", path, json=body)

    def delete(self, path: str) -> Any:
        """DELETE a resource; raises as `get` does."""
        return self._answer("DELETE", path)

    def upload(self, path: str, name: str, content: BinaryIO, fields: Mapping[str, str]) -> Any:
        """POST a form with a file, which is read as it is sent; raises as `get` does."""
        return self._answer("POST", path, data=dict(fields), files={"file": (name, content)})

    def download(self, path: str) -> Iterator[bytes]:
        """GET bytes, piece by piece; raises as `get` does."""
        try:
            with self._http.stream("GET", path) as response:
                if response.status_code >= 400:
                    response.read()
                _refuse(response)
                yield from response.iter_bytes()
        except httpx2.TransportError as exc:
            raise self._unreachable(exc) from None

    def _unreachable(self, exc: Exception) -> ApiUnreachable:
        return ApiUnreachable(
            f"The API does not answer at {self._url} ({type(exc).__name__}). Start the "
            "embedded stack with `overline up`, or set OVERLINE_API_URL."
        )

    def _answer(self, method: str, path: str, **request: Any) -> Any:
        try:
            response = self._http.request(method, path, **request)
        except httpx2.TransportError as exc:
            raise self._unreachable(exc) from None
        _refuse(response)
        return response.json()

    def events(
        self, task_id: UUID | str, *, after: str | None = None, give_up_after_s: float = 60.0
    ) -> Iterator[TaskEvent]:
        """Yield a task's events to its last one, without gap or repeat, over any interruption.

        Args:
            task_id: The task.
            after: Id of the last event already seen.
            give_up_after_s: How long to try to reconnect, in seconds.

        Raises:
            ApiRefusal: The API refused.
            ApiUnreachable: It did not come back in time.
        """
        lost = f"The task goes on: `overline watch {task_id}`."
        for event in self._stream(f"/v1/tasks/{task_id}/events", after, give_up_after_s, lost):
            yield event
            if event.final:
                return

    def session_events(
        self, session_id: UUID | str, *, first: int, give_up_after_s: float = 60.0
    ) -> Iterator[TaskEvent]:
        """Yield a session's events from a message on, until nobody asks for more of them.

        Args:
            session_id: The session.
            first: Number of the message to begin with.
            give_up_after_s: How long to try to reconnect, in seconds.

        Raises:
            ApiRefusal: The API refused.
            ApiUnreachable: It did not come back in time.
        """
        path = f"/v1/sessions/{session_id}/events?from_message={first}"
        lost = f"The session goes on: `overline chat --session {session_id}`."
        for event in self._stream(path, None, give_up_after_s, lost):
            yield event
            if event.type == "session.closed":
                return

    def _stream(
        self, path: str, after: str | None, give_up_after_s: float, lost: str
    ) -> Iterator[TaskEvent]:
        """Yield events, and come back to where they broke off."""
        lost_at: float | None = None
        while True:
            headers = {} if after is None else {"Last-Event-ID": after}
            try:
                with self._http.sse(path, headers=headers, timeout=_STREAM_TIMEOUT_S) as source:
                    if source.response.status_code >= 400:
                        source.response.read()
                        _refuse(source.response)
                    for event in source:
                        lost_at = None
                        if not event.data:
                            continue
                        document = json.loads(event.data)
                        after = event.id or after
                        yield TaskEvent(
                            id=event.id,
                            type=event.event,
                            step=int(document.get("step") or 0),
                            payload=document.get("payload") or {},
                            turn=int(document.get("turn") or 0),
                        )
            except httpx2.TransportError:
                pass  # the server or the network went away: come back where we were
            except ApiRefusal as refusal:
                if refusal.status != 503:
                    raise
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > give_up_after_s:
                raise ApiUnreachable(
                    f"The stream of events was lost and did not come back in "
                    f"{give_up_after_s:.0f} s. {lost}"
                )
            time.sleep(0.5)


def _authorization(settings: Settings) -> dict[str, str]:
    key = settings.api_key.get_secret_value().strip() if settings.api_key is not None else ""
    if not (key.isascii() and key.isprintable()):
        kind = errors.Unauthenticated
        said = {"title": kind.title, "code": kind.code, "detail": "OVERLINE_API_KEY is no key."}
        raise ApiRefusal(kind.status, said)
    return {"Authorization": f"Bearer {key}"} if key else {}


def _refuse(response: httpx2.Response) -> None:
    if response.status_code < 400:
        return
    try:
        problem = response.json()
    except ValueError:
        problem = {"title": response.reason_phrase}
    told = problem.get("error") if isinstance(problem, dict) else None
    if isinstance(told, dict):
        # A route that speaks OpenAI's words: the same things by other names.
        problem = {"title": "Refused", "detail": told.get("message"), **told}
    raise ApiRefusal(response.status_code, problem if isinstance(problem, dict) else {})
