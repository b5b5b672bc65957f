"""Who is calling: API keys and what they stand for."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from store.database import Database
from store.text import jsonb

_TOKEN = re.compile(r"ol_([0-9a-f]{32})_[A-Za-z0-9_-]{43}")

AuthReason = Literal[
    "malformed", "unknown", "wrong_secret", "disabled", "expired", "address", "endpoint"
]

#: What a key may be given to do. `interactive`: its tasks go before others'.
SCOPES = ("tasks", "collections", "spend", "codec", "admin", "read", "interactive")

#: Names for the usual sets of scopes.
ROLES: Mapping[str, tuple[str, ...]] = {
    "admin": ("tasks", "collections", "spend", "codec", "admin"),
    "member": ("tasks", "collections", "spend"),
    "reader": ("read",),
}

#: Binds where a request comes from and goes to, for `authenticate`. A function called beside it
#: has to take its first argument through `CALLER_KEY`: so it runs after the binding.
BIND_CALLER = "(select set_config('overline.caller', %s, true) offset 0) bound (caller)"
CALLER_KEY = "case when bound.caller is not null then %s::uuid end"


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


def named_key(token: str) -> UUID | None:
    """The key that a token says it is of; None when it has not the form of one."""
    match = _TOKEN.fullmatch(token)
    return UUID(hex=match[1]) if match else None


def token_digest(token: str) -> bytes:
    """What is stored of a token: the SHA-256 of all of it.

    A plain hash is enough because the secret is 256 random bits, not a password.
    """
    return hashlib.sha256(token.encode("ascii", "replace")).digest()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request comes from and goes to, for keys that are restricted in it.

    Attributes:
        address: IP address of the client, or None where it has none.
        endpoint: path of the request, or what stands for it.
    """

    address: str | None = None
    endpoint: str = ""

    def said(self) -> str:
        """As `authenticate` reads it: an address that is none is left out."""
        try:
            address = ipaddress.ip_address(self.address or "")
        except ValueError:
            return f" {self.endpoint}"
        mapped = getattr(address, "ipv4_mapped", None)
        return f"{str(mapped or address).partition('%')[0]} {self.endpoint}"


async def authenticate(
    db: Database, token: str, origin: Origin | None = None
) -> Principal | AuthFailure:
    """Finds out whom a token belongs to (one round trip; none for a malformed one).

    Raises:
        DatabaseUnavailable: the answer is not known.
    """
    key_id = named_key(token)
    if key_id is None:
        return AuthFailure("malformed")
    rows = await db.run_untenanted(
        f"select a.* from {BIND_CALLER} cross join lateral authenticate({CALLER_KEY}, %s) a",
        ((origin or Origin()).said(), key_id, token_digest(token)),
    )
    if not rows:
        return AuthFailure("unknown")
    row = rows[0]
    if row["verdict"] != "ok":
        return AuthFailure(row["verdict"])
    return Principal(row["organisation_id"], row["team_id"], key_id, tuple(row["scopes"]))


async def touch_keys(db: Database, keys: list[UUID]) -> None:
    """Notes that keys were used just now."""
    await db.run_untenanted("select touch_keys(%s::uuid[])", (keys,))


async def restriction(
    db: Database, organisation_id: UUID, key_id: UUID, *, kind: str, route: str, asked: Any
) -> str | None:
    """What a key may not use of what a task asks: `model`, `route` or `tool`; None: nothing."""
    rows = await db.run(
        organisation_id,
        "select key_restriction(%s, %s, %s, %s, %s) as what",
        (organisation_id, key_id, kind, route, jsonb(asked)),
    )
    what: str | None = rows[0]["what"]
    return what


async def nameable(
    db: Database, organisation_id: UUID, key_id: UUID, names: Sequence[str]
) -> list[str]:
    """Those of some names that a call with this key may have as its model."""
    rows = await db.run(
        organisation_id,
        "select name from unnest(%s::text[]) name where"
        " key_restriction(%s, %s, 'call', name, jsonb_build_object('model', name)) is null",
        (list(names), organisation_id, key_id),
    )
    return [row["name"] for row in rows]
