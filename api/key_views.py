"""Keys and teams as administrators say and see them."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from store import keys
from store.identity import ROLES

__all__ = [
    "ChangedKey",
    "KeyPage",
    "KeyView",
    "NewKey",
    "NewTeam",
    "Rotation",
    "TeamList",
    "TeamView",
    "TokenView",
    "key_view",
    "role_of",
    "team_view",
    "token_view",
]

Role = Literal["admin", "member", "reader"]
Scope = Literal["tasks", "collections", "spend", "codec", "admin", "read", "interactive"]

_MOST = 100
#: A month: longer is no overlap, but a second key.
_LONGEST_OVERLAP_S = 2_678_400


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ValueError("an address or a range such as 10.0.0.0/8 or 2001:db8::/32") from None


Name = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=200,
        pattern=r"^[^\s\x00-\x1f\x7f](?:[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?$",
    ),
]
Listed = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}\*?$|^\*$")]
Endpoint = Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9._/-]{0,254}$")]
Network = Annotated[str, StringConstraints(max_length=64), AfterValidator(_network)]

Names = Annotated[tuple[Listed, ...], Field(max_length=_MOST)]
Endpoints = Annotated[tuple[Endpoint, ...], Field(max_length=_MOST)]
Networks = Annotated[tuple[Network, ...], Field(max_length=_MOST)]
Scopes = Annotated[tuple[Scope, ...], Field(min_length=1, max_length=len(ROLES["admin"]) + 2)]


class _Limits(BaseModel):
    """What a key is restricted to. None restricts nothing; an empty list allows nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: Names | None = Field(
        default=None,
        description="Models that may be named; `gpt-*` stands for all that begin so. A key with "
        "`models` or `routes` may name what they list, and nothing else.",
    )
    routes: Names | None = Field(
        default=None, description="Routes that may be named where no model is, as `models`."
    )
    endpoints: Endpoints | None = Field(
        default=None, description="Paths that may be asked, each with all below it."
    )
    addresses: Networks | None = Field(
        default=None, description="Addresses or ranges that may ask: `10.0.0.0/8`."
    )
    tools: Names | None = Field(
        default=None, description="Tools that tasks may use; `agent.*` as in `models`."
    )


class _KeyFields(_Limits):
    role: Role | None = Field(
        default=None,
        description="A usual set of scopes, instead of `scopes`: `admin`, `member` or `reader`.",
    )
    scopes: Scopes | None = Field(default=None, description="What it may do.")
    service_account: bool = Field(
        default=False, description="Whether it stands for a program and no person."
    )
    expires_at: AwareDatetime | None = Field(
        default=None, description="From when it is good no more, RFC 3339; none: never."
    )

    @model_validator(mode="after")
    def _either_role_or_scopes(self) -> Self:
        if self.role is not None and self.scopes is not None:
            raise ValueError("either a role or scopes")
        return self


class NewKey(_KeyFields):
    """A key to be made."""

    team: UUID = Field(description="The team it belongs to.")
    name: Name = Field(description="What it is called.")

    def said(self) -> dict[str, Any]:
        """Return its fields as the store takes them."""
        fields = self.model_dump(exclude={"team", "role"})
        fields["scopes"] = self.scopes or ROLES[self.role or "member"]
        return _stored(fields)


class ChangedKey(_KeyFields):
    """What of a key is to be otherwise; what is not said stays, and null lifts a restriction."""

    name: Name | None = Field(default=None, description="What it is called.")
    service_account: bool | None = Field(  # type: ignore[assignment]
        default=None, description="Whether it stands for a program and no person."
    )

    @model_validator(mode="after")
    def _nothing_that_has_to_be(self) -> Self:
        for name in ("name", "scopes", "role", "service_account"):
            if name in self.model_fields_set and getattr(self, name) is None:
                raise ValueError(f"{name} cannot be null")
        return self

    def said(self) -> dict[str, Any]:
        """Return what changes, as the store takes it."""
        fields = self.model_dump(exclude={"role"}, exclude_unset=True)
        if self.role is not None:
            fields["scopes"] = ROLES[self.role]
        return _stored(fields)


class Rotation(BaseModel):
    """How a key gets a new secret."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    overlap_seconds: int = Field(
        default=0,
        ge=0,
        le=_LONGEST_OVERLAP_S,
        description="For how long the secret it has is good beside the new one, in seconds.",
    )


class NewTeam(BaseModel):
    """A team to be made, or its new name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name = Field(description="Name, unique in the organisation.")


class TeamView(BaseModel):
    """A team."""

    model_config = ConfigDict(frozen=True)

    id: UUID = Field(description="Its id.")
    name: str = Field(description="Name, unique in the organisation.")
    keys: int = Field(description="How many keys of it are enabled.", ge=0)
    created_at: datetime = Field(description="When it was made, RFC 3339 in UTC.")


class TeamList(BaseModel):
    """The teams of the organisation."""

    model_config = ConfigDict(frozen=True)

    teams: tuple[TeamView, ...] = Field(description="By name.")


class KeyView(BaseModel):
    """A key. Its secret is not known here: only a hash is kept."""

    model_config = ConfigDict(frozen=True)

    id: UUID = Field(description="Its id.")
    prefix: str = Field(description="How its token begins; safe to show and to log.")
    name: str = Field(description="What it is called.")
    team: UUID = Field(description="The team it belongs to.")
    role: Role | None = Field(description="The role with these scopes, if one has just these.")
    scopes: tuple[str, ...] = Field(description="What it may do.")
    service_account: bool = Field(description="Whether it stands for a program and no person.")
    models: tuple[str, ...] | None = Field(description="Models it may name; none: any.")
    routes: tuple[str, ...] | None = Field(description="Routes it may name; none: any.")
    endpoints: tuple[str, ...] | None = Field(description="Paths it may ask; none: any.")
    addresses: tuple[str, ...] | None = Field(description="From where it may ask; none: anywhere.")
    tools: tuple[str, ...] | None = Field(description="Tools its tasks may use; none: any.")
    disabled: bool = Field(description="Whether it was switched off.")
    created_at: datetime = Field(description="When it was made, RFC 3339 in UTC.")
    expires_at: datetime | None = Field(
        description="From when it is good no more, RFC 3339 in UTC."
    )
    rotated_at: datetime | None = Field(
        description="When it got the secret it has, RFC 3339 in UTC."
    )
    previous_until: datetime | None = Field(
        description="Until when the secret before is good beside it, RFC 3339 in UTC."
    )
    last_used_at: datetime | None = Field(
        description="When it was last used, to the minute, RFC 3339 in UTC."
    )


class TokenView(KeyView):
    """A key with its secret, which is shown this once."""

    token: str = Field(description="Send it as `Authorization: Bearer`. It cannot be shown again.")


class KeyPage(BaseModel):
    """A page of keys."""

    model_config = ConfigDict(frozen=True)

    keys: tuple[KeyView, ...] = Field(description="Newest first.")
    next_cursor: UUID | None = Field(description="`cursor` of the next page; none: the last one.")


def role_of(scopes: tuple[str, ...] | list[str]) -> Role | None:
    """Return the role that has just these scopes."""
    for name, its in ROLES.items():
        if set(its) == set(scopes):
            role: Any = name
            return role  # type: ignore[no-any-return]
    return None


def team_view(team: keys.Team) -> TeamView:
    """Return a team as it is shown."""
    return TeamView(id=team.team_id, name=team.name, keys=team.keys, created_at=team.created_at)


def key_view(key: keys.Key) -> KeyView:
    """Return a key as it is shown."""
    return KeyView.model_validate(_shown(key))


def token_view(minted: keys.Minted) -> TokenView:
    """Return a key as it is shown when its secret is new."""
    return TokenView.model_validate({**_shown(minted.key), "token": minted.token})


def _shown(key: keys.Key) -> dict[str, Any]:
    until = key.previous_until
    return {
        "id": key.key_id,
        "prefix": key.prefix,
        "name": key.name,
        "team": key.team_id,
        "role": role_of(key.scopes),
        "scopes": key.scopes,
        "service_account": key.service_account,
        "models": key.models,
        "routes": key.routes,
        "endpoints": key.endpoints,
        "addresses": key.addresses,
        "tools": key.tools,
        "disabled": not key.enabled,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "rotated_at": key.rotated_at,
        "previous_until": until if until and until > datetime.now(UTC) else None,
        "last_used_at": key.last_used_at,
    }


def _stored(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: list(dict.fromkeys(value)) if isinstance(value, tuple) else value
        for name, value in fields.items()
    }
