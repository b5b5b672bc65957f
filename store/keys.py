"""Teams and keys, as their organisation's administrators keep them; every change is audited.

A change and its link in the audit chain are one transaction, so neither is there without the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import errors as pg
from uuid_utils.compat import uuid7

from store.database import Database, TenantConnection
from store.errors import NameTaken
from store.identity import mint_token, token_digest
from store.text import jsonb

__all__ = [
    "Key",
    "Minted",
    "Team",
    "change_key",
    "create_key",
    "create_team",
    "get_key",
    "get_team",
    "list_keys",
    "list_teams",
    "rename_team",
    "rotate_key",
]


@dataclass(frozen=True, slots=True)
class Team:
    """A team of an organisation; `keys` counts those that are enabled."""

    team_id: UUID
    name: str
    created_at: datetime
    keys: int


@dataclass(frozen=True, slots=True)
class Key:
    """A key without its secret. A list that is None restricts nothing.

    Attributes:
        service_account: it stands for a program, and no person.
        previous_until: until when the secret before the last rotation is good, too.
    """

    key_id: UUID
    team_id: UUID
    name: str
    scopes: list[str]
    service_account: bool
    enabled: bool
    models: list[str] | None
    routes: list[str] | None
    endpoints: list[str] | None
    addresses: list[str] | None
    tools: list[str] | None
    expires_at: datetime | None
    created_at: datetime
    rotated_at: datetime | None
    previous_until: datetime | None
    last_used_at: datetime | None

    @property
    def prefix(self) -> str:
        """The part of its token that may be shown."""
        return f"ol_{self.key_id.hex}"


@dataclass(frozen=True, slots=True)
class Minted:
    """A key with a new secret; the token is kept nowhere."""

    key: Key
    token: str


#: What of a key can be changed, and the type of its column.
_CHANGEABLE: Mapping[str, str] = {
    "name": "text",
    "scopes": "text[]",
    "service_account": "boolean",
    "enabled": "boolean",
    "models": "text[]",
    "routes": "text[]",
    "endpoints": "text[]",
    "addresses": "cidr[]",
    "tools": "text[]",
    "expires_at": "timestamptz",
}
_KEY = ", ".join(
    "addresses::text[]" if field.name == "addresses" else field.name for field in fields(Key)
)
_TEAM = (
    "t.team_id, t.name, t.created_at, (select count(*) from api_keys k"
    " where k.organisation_id = t.organisation_id and k.team_id = t.team_id and k.enabled) as keys"
)
_BUDGET = "insert into budgets (organisation_id, scope, scope_id) values (%s, %s, %s)"


async def list_teams(db: Database, organisation_id: UUID) -> list[Team]:
    """The organisation's teams by name."""
    rows = await db.run(
        organisation_id,
        f"select {_TEAM} from teams t where t.organisation_id = %s order by t.name",
        (organisation_id,),
    )
    return [Team(**row) for row in rows]


async def get_team(db: Database, organisation_id: UUID, team_id: UUID) -> Team | None:
    """One team."""
    rows = await db.run(
        organisation_id,
        f"select {_TEAM} from teams t where t.organisation_id = %s and t.team_id = %s",
        (organisation_id, team_id),
    )
    return Team(**rows[0]) if rows else None


async def create_team(db: Database, organisation_id: UUID, actor: str, name: str) -> UUID:
    """Makes a team, with a budget that counts and limits nothing yet.

    Raises:
        NameTaken: the organisation has a team of this name.
    """
    team_id = uuid7()
    async with db.transaction(organisation_id) as tx:
        made = await tx.execute(
            "insert into teams (organisation_id, team_id, name) values (%s, %s, %s)"
            " on conflict (organisation_id, name) do nothing returning 1",
            (organisation_id, team_id, name),
        )
        if not made:
            raise NameTaken("there is a team of this name")
        await tx.execute(_BUDGET, (organisation_id, "team", team_id))
        await _note(tx, actor, "team.created", team_id, after={"name": name})
    return team_id


async def rename_team(
    db: Database, organisation_id: UUID, actor: str, team_id: UUID, name: str
) -> bool:
    """Gives a team another name; False: there is no such team.

    Raises:
        NameTaken: another team has it.
    """
    try:
        async with db.transaction(organisation_id) as tx:
            found = await tx.execute(
                "select name from teams where organisation_id = %s and team_id = %s"
                " for no key update",
                (organisation_id, team_id),
            )
            if not found:
                return False
            before = found[0]["name"]
            if before != name:
                await tx.execute(
                    "update teams set name = %s where organisation_id = %s and team_id = %s",
                    (name, organisation_id, team_id),
                )
                await _note(
                    tx,
                    actor,
                    "team.changed",
                    team_id,
                    before={"name": before},
                    after={"name": name},
                )
            return True
    except pg.UniqueViolation:
        raise NameTaken("there is a team of this name") from None


async def list_keys(
    db: Database,
    organisation_id: UUID,
    *,
    team_id: UUID | None = None,
    cursor: UUID | None = None,
    limit: int = 50,
) -> list[Key]:
    """Keys, newest first, from the one after `cursor` on."""
    rows = await db.run(
        organisation_id,
        f"select {_KEY} from api_keys where organisation_id = %s"
        " and (%s::uuid is null or team_id = %s) and (%s::uuid is null or key_id < %s)"
        " order by key_id desc limit %s",
        (organisation_id, team_id, team_id, cursor, cursor, limit),
    )
    return [Key(**row) for row in rows]


async def get_key(db: Database, organisation_id: UUID, key_id: UUID) -> Key | None:
    """One key."""
    rows = await db.run(
        organisation_id,
        f"select {_KEY} from api_keys where organisation_id = %s and key_id = %s",
        (organisation_id, key_id),
    )
    return Key(**rows[0]) if rows else None


async def create_key(
    db: Database, organisation_id: UUID, actor: str, team_id: UUID, said: Mapping[str, Any]
) -> Minted | None:
    """Makes a key, with a budget that counts and limits nothing yet.

    Args:
        said: its fields by name; those of `Key` that can be changed.

    Returns:
        The key and its token; None when there is no such team.
    """
    key_id = uuid7()
    token = mint_token(key_id)
    columns = list(said)
    values = ", ".join(f"%s::{_CHANGEABLE[name]}" for name in columns)
    async with db.transaction(organisation_id) as tx:
        team = await tx.execute(
            "select 1 from teams where organisation_id = %s and team_id = %s for key share",
            (organisation_id, team_id),
        )
        if not team:
            return None
        rows = await tx.execute(
            "insert into api_keys (organisation_id, key_id, team_id, secret_hash,"
            f" {', '.join(columns)}) values (%s, %s, %s, %s, {values}) returning {_KEY}",
            (organisation_id, key_id, team_id, token_digest(token), *said.values()),
        )
        key = Key(**rows[0])
        await tx.execute(_BUDGET, (organisation_id, "key", key_id))
        after = {name: value for name, value in asdict(key).items() if value is not None}
        await _note(tx, actor, "key.created", key_id, after=after)
    return Minted(key, token)


async def change_key(
    db: Database,
    organisation_id: UUID,
    actor: str,
    key_id: UUID,
    changes: Mapping[str, Any],
    *,
    action: str = "key.changed",
) -> Key | None:
    """Changes a key; every process heeds it from its next request on. None: there is no such."""
    async with db.transaction(organisation_id) as tx:
        before = await _locked(tx, organisation_id, key_id)
        if before is None or not changes:
            return before
        columns = ", ".join(f"{name} = %s::{_CHANGEABLE[name]}" for name in changes)
        rows = await tx.execute(
            f"update api_keys set {columns} where organisation_id = %s and key_id = %s"
            f" returning {_KEY}",
            (*changes.values(), organisation_id, key_id),
        )
        key = Key(**rows[0])
        was, now = asdict(before), asdict(key)
        changed = [name for name in changes if was[name] != now[name]]
        if changed:
            await _note(
                tx,
                actor,
                action,
                key_id,
                before={name: was[name] for name in changed},
                after={name: now[name] for name in changed},
            )
    return key


async def rotate_key(
    db: Database, organisation_id: UUID, actor: str, key_id: UUID, *, overlap_seconds: int
) -> Minted | None:
    """Gives a key a new secret; the one it had is good for so many seconds more.

    A secret from before that one is not, whatever was said of it. None: there is no such key.
    """
    token = mint_token(key_id)
    async with db.transaction(organisation_id) as tx:
        before = await _locked(tx, organisation_id, key_id)
        if before is None:
            return None
        rows = await tx.execute(
            "update api_keys set secret_hash = %s, rotated_at = now(),"
            " previous_hash = case when %s > 0 then secret_hash end,"
            " previous_until = case when %s > 0 then now() + make_interval(secs => %s) end"
            f" where organisation_id = %s and key_id = %s returning {_KEY}",
            (
                token_digest(token),
                overlap_seconds,
                overlap_seconds,
                overlap_seconds,
                organisation_id,
                key_id,
            ),
        )
        key = Key(**rows[0])
        told = ("rotated_at", "previous_until")
        await _note(
            tx,
            actor,
            "key.rotated",
            key_id,
            before={name: getattr(before, name) for name in told},
            after={name: getattr(key, name) for name in told},
        )
    return Minted(key, token)


async def _locked(tx: TenantConnection, organisation_id: UUID, key_id: UUID) -> Key | None:
    rows = await tx.execute(
        f"select {_KEY} from api_keys where organisation_id = %s and key_id = %s for no key update",
        (organisation_id, key_id),
    )
    return Key(**rows[0]) if rows else None


async def _note(
    tx: TenantConnection, actor: str, action: str, subject: UUID, **facts: Mapping[str, Any]
) -> None:
    """Adds a change to the audit chain: `before` and `after`."""
    detail = {
        side: {name: _plain(value) for name, value in said.items()} for side, said in facts.items()
    }
    await tx.execute(
        "select audit_append(%s, %s, %s, %s)", (actor, action, str(subject), jsonb(detail))
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value
