"""Keys that are restricted and rotated; the audit chain of whoever changes them."""

from __future__ import annotations

from uuid import UUID

import psycopg
import pytest

from store import audit, keys
from store.database import Database
from store.errors import KeyRestricted, NameTaken
from store.identity import AuthFailure, Origin, Principal, authenticate, touch_keys
from tests.integration.store.calls import file_task
from tests.integration.store.conftest import Server, Tenant

ACTOR = "ol_tests"


async def _reason(db: Database, token: str, origin: Origin | None = None) -> str:
    found = await authenticate(db, token, origin)
    return found.reason if isinstance(found, AuthFailure) else "ok"


@pytest.mark.parametrize(
    ("address", "endpoint", "expected"),
    [
        ("10.1.2.3", "/v1/tasks", "ok"),
        ("::ffff:10.1.2.3", "/v1/tasks/x/steps", "ok"),
        ("2001:db8::5", "/v1/tasks", "ok"),
        ("10.2.0.1", "/v1/tasks", "address"),
        ("2001:db9::5", "/v1/tasks", "address"),
        (None, "/v1/tasks", "address"),
        ("not an address", "/v1/tasks", "address"),
        ("10.1.2.3", "/v1/tasksx", "endpoint"),
        ("10.1.2.3", "/v1/task", "endpoint"),
        ("10.1.2.3", "/v1/spend", "endpoint"),
    ],
)
async def test_where_a_request_comes_from_and_goes_to(
    db: Database, tenant: Tenant, address: str | None, endpoint: str, expected: str
) -> None:
    limits = {"addresses": ["10.1.0.0/16", "2001:db8::/32"], "endpoints": ["/v1/tasks"]}
    await keys.change_key(db, tenant.organisation_id, ACTOR, tenant.key_id, limits)
    assert await _reason(db, tenant.token, Origin(address, endpoint)) == expected
    # What one statement bound is gone with it: nothing of it answers the next one.
    assert await _reason(db, tenant.token) == "address"


async def test_a_rotated_key_has_two_secrets_until_the_overlap_ends(
    db: Database, admin_db: Database, tenant: Tenant
) -> None:
    organisation = tenant.organisation_id
    second = await keys.rotate_key(db, organisation, ACTOR, tenant.key_id, overlap_seconds=600)
    assert second is not None
    assert second.token != tenant.token
    assert [await _reason(db, token) for token in (tenant.token, second.token)] == ["ok", "ok"]
    third = await keys.rotate_key(db, organisation, ACTOR, tenant.key_id, overlap_seconds=600)
    assert third is not None
    found = [await _reason(db, token) for token in (tenant.token, second.token, third.token)]
    assert found == ["wrong_secret", "ok", "ok"]
    await db.run(
        organisation,
        "update api_keys set previous_until = now() where key_id = %s",
        (tenant.key_id,),
    )
    assert await _reason(db, second.token) == "wrong_secret"
    last = await keys.rotate_key(db, organisation, ACTOR, tenant.key_id, overlap_seconds=0)
    assert last is not None
    assert [await _reason(db, token) for token in (third.token, last.token)] == [
        "wrong_secret",
        "ok",
    ]


async def _file(
    db: Database, tenant: Tenant, kind: str, route: str, asked: dict[str, object]
) -> str:
    """File a task as any door does; says what the key may not use, or `filed`."""
    sql = (
        "insert into tasks (organisation_id, task_id, team_id, key_id, workflow_id,"
        " request_digest, route, input, tags, worst_case_usd, kind)"
        " values (%s, uuidv7(), %s, %s, 'w-' || uuidv7(), 'd', %s, %s, '{}', 0, %s)"
    )
    values = (tenant.organisation_id, tenant.team_id, tenant.key_id, route)
    try:
        await db.run(tenant.organisation_id, sql, (*values, psycopg.types.json.Jsonb(asked), kind))
    except KeyRestricted as refused:
        return str(refused).removeprefix("This key may not use this ").rstrip(".")
    return "filed"


async def test_models_routes_and_tools_of_every_kind_of_task(db: Database, tenant: Tenant) -> None:
    async def allow(**limits: list[str] | None) -> None:
        await keys.change_key(db, tenant.organisation_id, ACTOR, tenant.key_id, limits)

    plain: dict[str, object] = {"model": None, "tools": []}
    named: dict[str, object] = {"model": "small-1"}
    tools: dict[str, object] = {"tools": [{"name": "search"}, {"name": "calculator"}]}
    assert await _file(db, tenant, "agent", "default", plain) == "filed"

    await allow(models=["small-*"])
    assert await _file(db, tenant, "agent", "default", named) == "filed"
    assert await _file(db, tenant, "agent", "default", {"model": "large"}) == "model"
    assert await _file(db, tenant, "agent", "default", plain) == "route"
    assert await _file(db, tenant, "call", "small-2", {"model": "small-2"}) == "filed"
    assert await _file(db, tenant, "call", "default", {"model": "default"}) == "model"
    assert await _file(db, tenant, "map", "default", {"task": {"model": "large"}}) == "model"

    await allow(models=None, routes=["default"])
    assert await _file(db, tenant, "agent", "default", plain) == "filed"
    assert await _file(db, tenant, "agent", "fast", plain) == "route"
    # A model that is named is not chosen by a route, so a key with routes alone may name none.
    assert await _file(db, tenant, "agent", "default", named) == "model"
    assert await _file(db, tenant, "call", "default", {"model": "default"}) == "filed"

    await allow(routes=None, tools=["calculator", "agent.*"])
    assert await _file(db, tenant, "agent", "default", tools) == "tool"
    assert await _file(db, tenant, "map", "default", {"task": tools}) == "tool"
    allowed = {"tools": [{"name": "calculator"}, {"name": "agent.reader"}]}
    assert await _file(db, tenant, "agent", "default", allowed) == "filed"
    await allow(tools=[])
    assert await _file(db, tenant, "agent", "default", allowed) == "tool"
    assert await _file(db, tenant, "agent", "default", plain) == "filed"


async def test_every_change_is_in_the_chain_with_before_and_after(
    db: Database, tenant: Tenant, other_tenant: Tenant
) -> None:
    organisation = tenant.organisation_id
    team = await keys.create_team(db, organisation, ACTOR, "second")
    with pytest.raises(NameTaken):
        await keys.create_team(db, organisation, ACTOR, "second")
    with pytest.raises(NameTaken):
        await keys.rename_team(db, organisation, ACTOR, team, "team")
    assert await keys.rename_team(db, organisation, ACTOR, team, "third")
    minted = await keys.create_key(
        db, organisation, ACTOR, team, {"name": "k", "scopes": ["tasks"]}
    )
    assert minted is not None
    assert isinstance(await authenticate(db, minted.token), Principal)
    key_id = minted.key.key_id
    await keys.change_key(
        db, organisation, ACTOR, key_id, {"enabled": False}, action="key.disabled"
    )
    # The same again changes nothing, and says nothing.
    await keys.change_key(
        db, organisation, ACTOR, key_id, {"enabled": False}, action="key.disabled"
    )
    await keys.rotate_key(db, organisation, ACTOR, key_id, overlap_seconds=0)
    stranger = other_tenant.organisation_id
    assert await keys.change_key(db, stranger, ACTOR, key_id, {"name": "x"}) is None
    assert await keys.rotate_key(db, stranger, ACTOR, key_id, overlap_seconds=0) is None
    assert await keys.create_key(db, stranger, ACTOR, team, {"name": "k", "scopes": []}) is None
    assert not await keys.rename_team(db, stranger, ACTOR, team, "x")

    found = await audit.find(db, organisation)
    assert [entry.action for entry in found] == [
        "key.rotated",
        "key.disabled",
        "key.created",
        "team.changed",
        "team.created",
    ]
    assert found[1].detail == {"before": {"enabled": True}, "after": {"enabled": False}}
    assert found[3].detail == {"before": {"name": "second"}, "after": {"name": "third"}}
    assert {entry.actor for entry in found} == {ACTOR}
    told = "".join(str(entry) for entry in found)
    assert minted.token not in told
    assert minted.token[-43:] not in told
    assert await audit.find(db, stranger) == []
    of_key = await audit.find(db, organisation, subject=str(key_id), action="key.", limit=2)
    assert [entry.action for entry in of_key] == ["key.rotated", "key.disabled"]
    more = await audit.find(db, organisation, before=of_key[-1].seq, until=found[0].at)
    assert [entry.seq for entry in more] == [3, 2, 1]
    assert await audit.find(db, organisation, actor="nobody") == []
    assert await audit.find(db, organisation, since=found[0].at, actor=ACTOR) == found[:1]


async def test_use_is_noted_of_keys_that_are_good(
    db: Database, tenant: Tenant, other_tenant: Tenant
) -> None:
    await keys.change_key(
        db, other_tenant.organisation_id, ACTOR, other_tenant.key_id, {"enabled": False}
    )
    await touch_keys(db, [tenant.key_id, other_tenant.key_id])

    async def last(owner: Tenant) -> object:
        key = await keys.get_key(db, owner.organisation_id, owner.key_id)
        assert key is not None
        return key.last_used_at

    first = await last(tenant)
    assert first is not None
    assert await last(other_tenant) is None
    await touch_keys(db, [tenant.key_id])
    assert await last(tenant) == first


async def test_a_row_that_was_altered_is_found(
    db: Database, server: Server, tenant: Tenant
) -> None:
    organisation = tenant.organisation_id
    for number in range(5):
        await keys.create_team(db, organisation, ACTOR, f"team {number}")
    assert await audit.verify(db, organisation) is None
    with psycopg.connect(server.admin_url, autocommit=True) as superuser:
        superuser.execute("set session_replication_role = replica")
        superuser.execute(
            "update audit_log set actor = 'somebody else' where organisation_id = %s and seq = 3",
            (organisation,),
        )
    assert await audit.verify(db, organisation) == 3
    assert await audit.length(db, organisation) == 5


async def test_a_key_restricted_since_does_not_get_further_tasks(
    db: Database, tenant: Tenant
) -> None:
    task = await file_task(db, tenant)
    assert isinstance(task, UUID)
    await keys.change_key(db, tenant.organisation_id, ACTOR, tenant.key_id, {"routes": ["another"]})
    with pytest.raises(KeyRestricted, match="route"):
        await file_task(db, tenant)
