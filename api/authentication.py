"""Who is calling: a bearer token becomes a principal, or the request ends with 401.

The whole token is checked against the database on every request, with where the request comes from
and goes to: nothing about a key is cached, so a key that is disabled, rotated or restricted stops
working with the next request.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.parts import Parts
from api.problems import forbidden, not_accepted, unauthenticated
from store.identity import Origin, Principal, authenticate

__all__ = [
    "AdminCaller",
    "Caller",
    "CodecCaller",
    "CollectionsCaller",
    "SpendCaller",
    "origin_of",
    "parts_of",
    "require",
]

#: What the scope `read` lets a key look at, and not change.
_READABLE = frozenset({"tasks", "collections", "spend"})

_bearer = HTTPBearer(
    scheme_name="ApiKey",
    bearerFormat="ol_<id>_<secret>",
    description="An API key, sent as `Authorization: Bearer ol_...`. Only its hash is stored.",
    auto_error=False,
)


async def parts_of(request: Request) -> Parts:
    """Dependency: the connections of this process."""
    # Not because it waits: what is not a coroutine is sent to a thread, with every request.
    parts = request.app.state.parts
    assert isinstance(parts, Parts)
    return parts


def origin_of(request: Request) -> Origin:
    """Return where a request comes from and goes to.

    Behind a proxy on this machine the address is what it forwards; see docs/operations.md.
    """
    return Origin(request.client.host if request.client else None, request.url.path)


def require(scope: str) -> Callable[..., Coroutine[Any, Any, Principal]]:
    """Return a dependency that yields the caller, who must have `scope`.

    Raises:
        ProblemError: 401 without a valid key, 403 without the scope.
    """

    async def caller(
        request: Request,
        parts: Annotated[Parts, Depends(parts_of)],
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    ) -> Principal:
        if credentials is None:
            raise unauthenticated()
        # A token of the wrong form is refused without asking the database.
        found = await authenticate(parts.database, credentials.credentials, origin_of(request))
        if not isinstance(found, Principal):
            raise not_accepted(found)
        request.scope["state"]["key_id"] = str(found.key_id)
        parts.key_use.note(found.key_id)
        if scope not in found.scopes and not (
            request.method == "GET" and scope in _READABLE and "read" in found.scopes
        ):
            raise forbidden(scope)
        return found

    return caller


Caller = Annotated[Principal, Depends(require("tasks"))]
CollectionsCaller = Annotated[Principal, Depends(require("collections"))]
SpendCaller = Annotated[Principal, Depends(require("spend"))]
AdminCaller = Annotated[Principal, Depends(require("admin"))]
CodecCaller = Annotated[Principal, Depends(require("codec"))]
