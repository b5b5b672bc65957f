"""What is refused before any route sees it: bodies too large, not JSON, or not storable as text.

A body is kept up to the limit and no further. NUL characters and lone surrogates are valid JSON
escapes that Postgres and UTF-8 cannot hold; they are refused here once, with a pointer to the
field, so that no later layer meets them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.error_shape import error_answer
from api.invalid_input import pointer_to
from api.problems import FieldProblem, ProblemError
from workflows import errors

__all__ = ["BodyGuard", "field_problems_of"]

_MAX_DEPTH = 64
_MAX_DISCARDED_BYTES = 64 * 1024 * 1024
_MAX_DISCARD_S = 5.0


class BodyGuard:
    """ASGI middleware that reads and checks JSON bodies.

    Args:
        app: The application inside.
        max_bytes: Largest body accepted, in bytes.
        larger: The same of paths that take more.
        streamed: Paths that read a body themselves, and look at it as it comes.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int,
        larger: Mapping[str, int] | None = None,
        streamed: Collection[str] = (),
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._larger = larger or {}
        self._streamed = frozenset(streamed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if "\x00" in scope["path"] or b"%00" in scope.get("query_string", b""):
            where = "path" if "\x00" in scope["path"] else "query"
            await error_answer(
                scope,
                ProblemError(
                    errors.InvalidRequest,
                    f"The {where} of the URL holds a NUL character.",
                    errors=(_problem("nul_character", [], where),),
                ),
            )(scope, receive, send)
            return
        if scope["method"] not in ("POST", "PUT", "PATCH") or scope["path"] in self._streamed:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        limit = self._larger.get(scope["path"], self._max_bytes)
        body = await self._read(headers, receive, limit)
        if body is None:
            await _discard(receive)
            await error_answer(
                scope,
                ProblemError(
                    errors.RequestTooLarge,
                    f"The body of a request may have at most {limit} bytes.",
                    errors=(_problem("too_long", [], "body"),),
                    headers={"Connection": "close"},
                ),
            )(scope, receive, send)
            return
        if body:
            document, refusal = _looked_at(headers, body)
            # Who validates Python objects need not parse it a second time.
            scope.setdefault("state", {})["document"] = document
            if refusal is not None:
                await error_answer(scope, refusal)(scope, receive, send)
                return
        await self._app(scope, _replay(body, receive), send)

    async def _read(self, headers: Headers, receive: Receive, limit: int) -> bytes | None:
        """Return the body, or None as soon as it is known to be too large."""
        declared = headers.get("content-length", "")
        if declared.isdigit() and int(declared[:20]) > limit:
            return None
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return b"".join(chunks)
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                return None
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)


async def _discard(receive: Receive) -> None:
    """Read what is still coming, within limits, and keep nothing of it.

    A connection closed with data unread is reset, and the client never sees the answer.
    """
    left = _MAX_DISCARDED_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_MAX_DISCARD_S):
            while left > 0:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                left -= len(message.get("body", b""))


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def receive_again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def _looked_at(headers: Headers, body: bytes) -> tuple[Any, ProblemError | None]:
    """Return the parsed body, and why it is refused, if it is."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        return None, ProblemError(
            errors.MalformedRequest,
            "The body must be JSON: send `Content-Type: application/json`.",
            status=415,
        )
    try:
        document = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        return None, _malformed("not_utf8", "")
    except RecursionError:
        return None, _malformed("too_deep", "")
    except ValueError as exc:
        where = f" At character {exc.pos}." if isinstance(exc, json.JSONDecodeError) else ""
        return None, _malformed("malformed_json", where)
    found = tuple(field_problems_of(document))
    if found:
        return None, ProblemError(
            errors.InvalidRequest,
            f"{len(found)} thing(s) in the body cannot be stored: {found[0].detail}",
            errors=found,
        )
    return document, None


def _malformed(code: str, where: str) -> ProblemError:
    problem = _problem(code, [])
    return ProblemError(errors.MalformedRequest, problem.detail + where, errors=(problem,))


def _no_constant(name: str) -> Any:
    raise ValueError(name)


_WORDS = {
    "nul_character": "The text holds a NUL character.",
    "lone_surrogate": "The text holds a lone surrogate: not valid Unicode.",
    "not_finite": "A finite number is expected.",
    "too_deep": f"The body is nested more than {_MAX_DEPTH} deep.",
    "not_utf8": "The body is not valid UTF-8.",
    "malformed_json": "The body is not valid JSON.",
    "too_long": "The body is too large.",
}


def _problem(code: str, location: list[str | int], where: str = "body") -> FieldProblem:
    return FieldProblem.model_validate(
        {
            "pointer": pointer_to(location),
            "in": where,
            "code": code,
            "detail": _WORDS[code],
        }
    )


def field_problems_of(document: Any, *, limit: int = 20) -> Iterator[FieldProblem]:
    """Yield what in a parsed JSON document cannot be stored or handled, with its pointer.

    Args:
        document: The parsed document.
        limit: How many to report at most.
    """
    found = 0
    stack: list[tuple[Any, tuple[str | int, ...]]] = [(document, ())]
    while stack and found < limit:
        value, location = stack.pop()
        code = None
        if isinstance(value, str):
            code = _text_problem(value)
        elif isinstance(value, float) and not math.isfinite(value):
            code = "not_finite"
        elif isinstance(value, dict | list) and len(location) > _MAX_DEPTH:
            code = "too_deep"
        elif isinstance(value, dict):
            for key, item in value.items():
                key_code = _text_problem(key)
                if key_code:
                    found += 1
                    yield _problem(key_code, [*location, key])
                stack.append((item, (*location, key)))
        elif isinstance(value, list):
            stack.extend((item, (*location, index)) for index, item in enumerate(value))
        if code:
            found += 1
            yield _problem(code, list(location))


def _text_problem(text: str) -> str | None:
    if "\x00" in text:
        return "nul_character"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "lone_surrogate"
    return None
