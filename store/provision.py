"""Organisations, teams, keys and their budgets, made by an operator (synchronous, admin URL)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import psycopg
from uuid_utils.compat import uuid7

from store.errors import NotFound, translate
from store.identity import ROLES, mint_token, token_digest
from store.text import jsonb
from store.urls import database_url

ALL_SCOPES = ROLES["admin"]

BudgetScope = Literal["organisation", "team", "key"]


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key. The token is shown this once; only its hash is kept."""

    organisation_id: UUID
    team_id: UUID
    key_id: UUID
    token: str


def create_organisation(admin_url: str, name: str, *, cap_usd: Decimal | None = None) -> UUID:
    """Makes an organisation and its budget row; no cap means counted but unlimited."""
    organisation_id = uuid7()
    with _as_owner(admin_url, organisation_id) as connection:
        connection.execute(
            "insert into organisations (organisation_id, name) values (%s, %s)",
            (organisation_id, name),
        )
        _add_budget(connection, organisation_id, "organisation", organisation_id, cap_usd)
    return organisation_id


def create_team(
    admin_url: str, organisation_id: UUID, name: str, *, cap_usd: Decimal | None = None
) -> UUID:
    """Makes a team and its budget row."""
    team_id = uuid7()
    with _as_owner(admin_url, organisation_id) as connection:
        connection.execute(
            "insert into teams (organisation_id, team_id, name) values (%s, %s, %s)",
            (organisation_id, team_id, name),
        )
        _add_budget(connection, organisation_id, "team", team_id, cap_usd)
    return team_id


def create_key(
    admin_url: str,
    organisation_id: UUID,
    team_id: UUID,
    name: str,
    *,
    scopes: tuple[str, ...] = ALL_SCOPES,
    cap_usd: Decimal | None = None,
    expires_at: datetime | None = None,
) -> CreatedKey:
    """Makes a key and its budget row, and returns its token for the only time."""
    key_id = uuid7()
    token = mint_token(key_id)
    with _as_owner(admin_url, organisation_id) as connection:
        connection.execute(
            "insert into api_keys (organisation_id, key_id, team_id, name, secret_hash, scopes,"
            " expires_at) values (%s, %s, %s, %s, %s, %s, %s)",
            (
                organisation_id,
                key_id,
                team_id,
                name,
                token_digest(token),
                list(scopes),
                expires_at,
            ),
        )
        _add_budget(connection, organisation_id, "key", key_id, cap_usd)
    return CreatedKey(organisation_id, team_id, key_id, token)


def set_budget(
    admin_url: str, organisation_id: UUID, scope_id: UUID, cap_usd: Decimal | None
) -> None:
    """Changes the cap of an organisation, team or key; None lifts it.

    A cap below what is already spent and held is raised to that: it stops new calls, while those
    in flight stay covered. It comes down with what they give back.

    Raises:
        NotFound: nothing with that id has a budget in this organisation.
    """
    with _as_owner(admin_url, organisation_id) as connection:
        changed = connection.execute(
            "update budgets set cap_usd = raised_cap(%s, held_usd, spent_usd), wished_usd = %s"
            " where organisation_id = %s and scope_id = %s",
            (cap_usd, cap_usd, organisation_id, scope_id),
        )
        if changed.rowcount == 0:
            raise NotFound("nothing with that id has a budget in this organisation")


def set_key_enabled(admin_url: str, organisation_id: UUID, key_id: UUID, *, enabled: bool) -> None:
    """Switches a key off or on; calls in flight are not touched."""
    with _as_owner(admin_url, organisation_id) as connection:
        connection.execute(
            "update api_keys set enabled = %s where organisation_id = %s and key_id = %s",
            (enabled, organisation_id, key_id),
        )


def ensure_demo_identity(
    admin_url: str,
    *,
    organisation_cap_usd: Decimal | None = Decimal("100"),
    team_cap_usd: Decimal | None = Decimal("50"),
    key_cap_usd: Decimal | None = Decimal("20"),
) -> CreatedKey | None:
    """Makes organisation, team and key `demo` with budgets.

    Returns:
        The new key with its token, or None when the demo organisation already exists: the token
        cannot be shown again.
    """
    try:
        with psycopg.connect(database_url(admin_url), connect_timeout=10) as connection:
            # Names of organisations are not unique by design, so two starts must not overlap.
            connection.execute("select pg_advisory_xact_lock(hashtext('overline.demo'))")
            found = connection.execute("select from organisations where name = 'demo'").fetchone()
            if found is not None:
                return None
            organisation_id = create_organisation(admin_url, "demo", cap_usd=organisation_cap_usd)
            team_id = create_team(admin_url, organisation_id, "demo", cap_usd=team_cap_usd)
            return create_key(admin_url, organisation_id, team_id, "demo", cap_usd=key_cap_usd)
    except psycopg.Error as error:
        raise translate(error) from error


@dataclass(frozen=True, slots=True)
class Organisation:
    """An organisation, and what it has spent in all."""

    organisation_id: UUID
    name: str
    created_at: datetime
    spent_usd: Decimal


def list_organisations(admin_url: str) -> list[Organisation]:
    """Every organisation, oldest first; needs a connection that looks past the fence."""
    try:
        with psycopg.connect(database_url(admin_url), connect_timeout=10) as connection:
            rows = connection.execute(
                "select o.organisation_id, o.name, o.created_at, coalesce((select b.spent_usd"
                " from budgets b where b.organisation_id = o.organisation_id"
                " and b.scope_id = o.organisation_id limit 1), 0)"
                " from organisations o order by o.organisation_id"
            ).fetchall()
    except psycopg.Error as error:
        raise translate(error) from error
    return [Organisation(*row) for row in rows]


def note_operator(
    admin_url: str, organisation_id: UUID, action: str, subject: str, detail: dict[str, Any]
) -> None:
    """Adds what an operator did to the organisation's audit chain."""
    try:
        with psycopg.connect(database_url(admin_url), connect_timeout=10) as connection:
            connection.execute(
                "select set_config('overline.organisation_id', %s, true)", (str(organisation_id),)
            )
            connection.execute(
                "select audit_append('operator', %s, %s, %s)", (action, subject, jsonb(detail))
            )
    except psycopg.Error as error:
        raise translate(error) from error


@contextmanager
def _as_owner(admin_url: str, organisation_id: UUID) -> Iterator[psycopg.Connection]:
    """A transaction bound to one organisation, with the owner's rights."""
    try:
        with psycopg.connect(database_url(admin_url), connect_timeout=10) as connection:
            connection.execute("set local role overline_owner")
            connection.execute(
                "select set_config('overline.organisation_id', %s, true)", (str(organisation_id),)
            )
            yield connection
    except psycopg.Error as error:
        raise translate(error) from error


def _add_budget(
    connection: psycopg.Connection,
    organisation_id: UUID,
    scope: BudgetScope,
    scope_id: UUID,
    cap_usd: Decimal | None,
) -> None:
    connection.execute(
        "insert into budgets (organisation_id, scope, scope_id, cap_usd) values (%s, %s, %s, %s)",
        (organisation_id, scope, scope_id, cap_usd),
    )
