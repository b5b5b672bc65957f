"""Versions of agents: made once, never changed, never gone, seen by their organisation only."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg import errors as pg

from store import agents
from store.database import Database
from store.errors import StoreError
from tests.integration.store.conftest import Server, Tenant


async def _apply(db: Database, tenant: Tenant, **spec: object) -> tuple[int, bool]:
    return await agents.apply_agent(
        db, tenant.organisation_id, name="a", spec=dict(spec), created_by=tenant.key_id
    )


async def test_equal_specs_are_one_version_whatever_their_order(
    db: Database, tenant: Tenant
) -> None:
    assert await _apply(db, tenant, x=1, y="é") == (1, True)
    assert await _apply(db, tenant, y="é", x=1) == (1, False)
    assert await _apply(db, tenant, x=2) == (2, True)
    # Back to what it was is a change, too.
    assert await _apply(db, tenant, x=1, y="é") == (3, True)
    found = await agents.list_versions(db, tenant.organisation_id, "a")
    assert [(agent.version, agent.spec.get("x")) for agent in found] == [(3, 1), (2, 2), (1, 1)]


async def test_versions_have_no_gap_when_many_apply_at_once(db: Database, tenant: Tenant) -> None:
    made = await asyncio.gather(*(_apply(db, tenant, x=number) for number in range(20)))
    assert sorted(version for version, _ in made) == list(range(1, 21))
    assert all(created for _, created in made)


async def test_nobody_changes_or_removes_a_version(
    db: Database, tenant: Tenant, server: Server
) -> None:
    await _apply(db, tenant, x=1)
    for statement in (
        "update agents set spec = '{}' where organisation_id = %s",
        "delete from agents where organisation_id = %s",
    ):
        with pytest.raises((StoreError, psycopg.Error)):
            await db.run(tenant.organisation_id, statement, (tenant.organisation_id,))
        with psycopg.connect(server.admin_url) as admin, pytest.raises(pg.InsufficientPrivilege):
            admin.execute(statement, (tenant.organisation_id,))
    (kept,) = await agents.list_versions(db, tenant.organisation_id, "a")
    assert kept.spec == {"x": 1}


async def test_an_archived_agent_is_back_when_it_is_applied(db: Database, tenant: Tenant) -> None:
    await _apply(db, tenant, x=1)
    await _apply(db, tenant, x=2)
    assert await agents.archive_agent(db, tenant.organisation_id, "a") is True
    assert await agents.archive_agent(db, tenant.organisation_id, "a") is False
    assert await agents.list_agents(db, tenant.organisation_id) == []
    old = await agents.get_agent(db, tenant.organisation_id, "a", 1)
    assert old is not None
    assert old.archived_at is not None
    assert await _apply(db, tenant, x=2) == (2, False)
    (listed,) = await agents.list_agents(db, tenant.organisation_id)
    assert (listed.version, listed.archived_at) == (2, None)


async def test_another_organisation_sees_none_of_them(
    db: Database, tenant: Tenant, other_tenant: Tenant
) -> None:
    await _apply(db, tenant, x=1)
    assert await agents.get_agent(db, other_tenant.organisation_id, "a") is None
    assert await agents.list_agents(db, other_tenant.organisation_id) == []
    assert await agents.archive_agent(db, other_tenant.organisation_id, "a") is False
    # Its own first version of the same name.
    assert await _apply(db, other_tenant, x=9) == (1, True)
