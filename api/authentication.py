"""Who is calling: a bearer token becomes a principal, or the request ends with 401.

The whole token is checked against the database on every request: nothing about a key is cached,
so a key that is disabled stops working with the next request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.parts import Parts
from api.problems import forbidden, unauthenticated
from store.identity import Principal, authenticate

__all__ = ["Caller", "CodecCaller", "CollectionsCaller", "SpendCaller", "parts_of", "require"]

#: `ol_<key id, 32 hex digits>_<32 random bytes, base64url>`
_TOKEN = re.compile(r"ol_[0-9a-f]{32}_[A-Za-z0-9_-]{43}")

_bearer = HTTPBearer(
    scheme_name="ApiKey",
    bearerFormat="ol_<id>_<secret>",
    description="An API key, sent as `Authorization: Bearer ol_...`. Only its hash is stored.",
    auto_error=False,
)


def parts_of(request: Request) -> Parts:
    """Dependency: the connections of this process."""
    parts = request.app.state.parts
    assert isinstance(parts, Parts)
    return parts


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
        # A token of the wrong form is refused without asking the database.
        if credentials is None or not _TOKEN.fullmatch(credentials.credentials):
            raise unauthenticated()
        principal = await authenticate(parts.database, credentials.credentials)
        if not isinstance(principal, Principal):
            raise unauthenticated()
        request.scope["state"]["key_id"] = str(principal.key_id)
        if scope not in principal.scopes:
            raise forbidden(scope)
        return principal

    return caller


Caller = Annotated[Principal, Depends(require("tasks"))]
CollectionsCaller = Annotated[Principal, Depends(require("collections"))]
SpendCaller = Annotated[Principal, Depends(require("spend"))]
CodecCaller = Annotated[Principal, Depends(require("codec"))]
