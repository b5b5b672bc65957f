"""Who calls on the OpenAI-compatible surface.

The statement that opens a call looks at the key, so that a call costs no round trip for it. What
is kept here is only that a token was good once: it decides whether somebody is a stranger, who is
told nothing of what is wrong with a request, and no more than that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from api.key_use import KeyUse
from api.problems import forbidden, not_accepted, unauthenticated
from store.database import Database
from store.identity import Origin, Principal, authenticate, named_key, token_digest
from workflows.errors import Unauthenticated

__all__ = ["Callers", "Token"]

_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the right form."""

    key_id: UUID
    digest: bytes
    text: str


class Callers:
    """Tokens that were good when they were last looked at.

    Args:
        key_use: Notes which keys are used.
    """

    def __init__(self, key_use: KeyUse) -> None:
        self._key_use = key_use
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    async def token(self, header: str | None, db: Database, origin: Origin) -> Token:
        """Return the token of an `Authorization` header.

        Raises:
            ProblemError: There is none, or it is nobody's (401); it may not make calls (403).
            DatabaseUnavailable: It was not seen before, and nobody can be asked.
        """
        scheme, _, text = (header or "").partition(" ")
        text = text.strip()
        key_id = named_key(text)
        if scheme.lower() != "bearer" or key_id is None:
            # A token of the wrong form is refused without asking the database.
            raise unauthenticated()
        token = Token(key_id, token_digest(text), text)
        if token.digest in self._seen:
            self._seen.move_to_end(token.digest)
            self._key_use.note(token.key_id)
            return token
        principal = await self.principal(token, db, origin)
        if "tasks" not in principal.scopes:
            raise forbidden("tasks")
        self._key_use.note(token.key_id)
        self._seen[token.digest] = None
        if len(self._seen) > _MOST:
            self._seen.popitem(last=False)
        return token

    async def principal(self, token: Token, db: Database, origin: Origin) -> Principal:
        """Return the owner of a token, by asking the database.

        Raises:
            ProblemError: It is nobody's (401).
        """
        found = await authenticate(db, token.text, origin)
        if not isinstance(found, Principal):
            self._forget(token)
            raise not_accepted(found)
        return found

    @contextmanager
    def calling(self, token: Token) -> Iterator[None]:
        """Take a token for a stranger's again where a call finds that it is good no more."""
        try:
            yield
        except Unauthenticated:
            self._forget(token)
            raise

    def _forget(self, token: Token) -> None:
        self._seen.pop(token.digest, None)
