"""Who is calling: API keys and what they stand for."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from store.database import Database

_TOKEN = re.compile(r"ol_([0-9a-f]{32})_[A-Za-z0-9_-]{43}")

AuthReason = Literal["malformed", "unknown", "wrong_secret", "disabled", "expired"]


@dataclass(frozen=True, slots=True)
class Principal:
    """The owner of a request: what a valid key stands for."""

    organisation_id: UUID
    team_id: UUID
    key_id: UUID
    scopes: tuple[str, ...]

    @property
    def key_prefix(self) -> str:
        """The part of the key that is safe to log."""
        return f"ol_{self.key_id.hex}"


@dataclass(frozen=True, slots=True)
class AuthFailure:
    """Why a token was not accepted. For logs and metrics: every reason looks alike on the wire."""

    reason: AuthReason


def mint_token(key_id: UUID) -> str:
    """Makes a new secret for a key: `ol_<id>_<secret>`, 256 random bits."""
    secret = base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
    return f"ol_{key_id.hex}_{secret}"


def token_digest(token: str) -> bytes:
    """What is stored of a token: the SHA-256 of all of it.

    A plain hash is enough because the secret is 256 random bits, not a password.
    """
    return hashlib.sha256(token.encode("ascii", "replace")).digest()


async def authenticate(db: Database, token: str) -> Principal | AuthFailure:
    """Finds out whom a token belongs to (one round trip; none for a malformed one).

    Raises:
        DatabaseUnavailable: the answer is not known.
    """
    match = _TOKEN.fullmatch(token)
    if match is None:
        return AuthFailure("malformed")
    key_id = UUID(hex=match[1])
    rows = await db.run_untenanted(
        "select * from authenticate(%s, %s)", (key_id, token_digest(token))
    )
    if not rows:
        return AuthFailure("unknown")
    row = rows[0]
    if row["verdict"] != "ok":
        return AuthFailure(row["verdict"])
    return Principal(row["organisation_id"], row["team_id"], key_id, tuple(row["scopes"]))
