"""Safety policies in the database: versions, the exact check, decisions, sealed originals."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from uuid_utils.compat import uuid7

from settings import Settings
from store import audit, calls, policies
from store.database import Database
from store.decisions import Decision, read_decisions
from store.decisions import note as note_decisions
from store.errors import NotFound, PolicyChanged
from store.housekeeping import remove_content
from store.identity import Origin, token_digest
from store.policy_view import PolicyView
from store.provision import create_team
from store.redactions import RedactionShelf
from store.screened_calls import ScreenedOut, file_screened_out
from tests.integration.store.calls import sync_test_catalogue
from tests.integration.store.conftest import Server, Tenant
from tests.integration.store.test_calls import asked, ending, rows
from workflows.codec import PayloadRefused
from workflows.sealing import Sealer

CANARY = "ada.canary@example.com"
SCREENED = "what was screened and is kept"
FINDING = {
    "rule": "mail",
    "kind": "pii",
    "action": "redact",
    "part": 0,
    "start": 3,
    "end": 9,
    "label": "EMAIL_ADDRESS",
}


@pytest.fixture(autouse=True)
async def _catalogue(admin_db: Database) -> None:
    await sync_test_catalogue(admin_db)


def decision(task_id: Any, version: int, **fields: Any) -> Decision:
    plain = Decision(
        task_id=task_id,
        step=1,
        place="input",
        policy_version=version,
        mode="enforce",
        outcome="redact",
        findings=[FINDING],
        actor="ol_test",
    )
    return dataclasses.replace(plain, **fields)


def sealer() -> Sealer:
    key = base64.b64encode(os.urandom(32)).decode()
    return Sealer(Settings(_env_file=None, payload_keys=SecretStr(f"k1:{key}")))


async def set_for(
    db: Database, tenant: Tenant, document: dict[str, Any], team: bool = False
) -> int:
    return await policies.set_policy(
        db,
        tenant.organisation_id,
        document,
        team_id=tenant.team_id if team else None,
        actor="ol_admin",
    )


async def now(db: Database, tenant: Tenant) -> int:
    return (await policies.in_force(db, tenant.organisation_id, tenant.team_id)).version


async def test_a_teams_own_policy_takes_the_place_of_the_organisations(
    db: Database, server: Server, tenant: Tenant, other_tenant: Tenant
) -> None:
    organisation = tenant.organisation_id
    assert await now(db, tenant) == 0
    first = await set_for(db, tenant, {"rules": [1]})
    assert await now(db, tenant) == first == 1
    # An equal document is no change.
    assert await set_for(db, tenant, {"rules": [1]}) == first
    own = await set_for(db, tenant, {"rules": [2]}, team=True)
    assert await now(db, tenant) == own == 2
    colleague = create_team(server.admin_url, organisation, "colleagues")
    assert (await policies.in_force(db, organisation, colleague)).version == first
    assert await now(db, other_tenant) == 0
    key = await policies.of_key(db, tenant.key_id, token_digest(tenant.token))
    assert key == policies.InForce(organisation, tenant.team_id, own)
    assert await policies.of_key(db, tenant.key_id, token_digest("x")) is None

    async def unset(team: Any) -> int | None:
        return await policies.unset_policy(db, organisation, team_id=team, actor="ol_admin")

    assert await unset(tenant.team_id) == 3
    assert await unset(tenant.team_id) is None
    assert await now(db, tenant) == first
    assert await unset(None) == 4
    assert await now(db, tenant) == 0
    kept = await policies.read_version(db, organisation, own)
    assert kept is not None
    assert kept.document == {"rules": [2]}
    assert [v.version for v in await policies.list_versions(db, organisation, team_id=None)] == [
        4,
        1,
    ]
    with pytest.raises(NotFound):
        await policies.set_policy(db, organisation, {}, team_id=uuid7(), actor="ol_admin")
    entries = await audit.find(db, organisation, action="policy.")
    assert [entry.action for entry in entries] == ["policy.unset", "policy.unset"] + [
        "policy.set"
    ] * 2
    assert entries[-2].detail["before"]["version"] is None
    assert entries[1].detail["before"]["version"] == own


async def test_versions_are_numbered_though_many_write(db: Database, tenant: Tenant) -> None:
    made = await asyncio.gather(*(set_for(db, tenant, {"rules": [n]}) for n in range(12)))
    assert sorted(made) == list(range(1, 13))


async def test_a_call_that_was_screened_by_another_policy_is_not_written(
    db: Database, admin_db: Database, short_folder: Path, tenant: Tenant
) -> None:
    view: PolicyView[dict[str, Any]] = PolicyView(db, dict)
    key, digest = tenant.key_id, token_digest(tenant.token)
    assert view.of_key(key) is None
    await db.run_untenanted("select 1")
    before = db.round_trips
    assert isinstance(await calls.open_call(db, asked(tenant)), calls.Known)
    assert db.round_trips - before == 1
    version = await set_for(db, tenant, {"rules": [CANARY[:3]]}, team=True)
    unscreened = asked(tenant, input={"messages": [{"role": "user", "content": CANARY}]})
    with pytest.raises(PolicyChanged):
        await calls.open_call(db, unscreened)
    held = await view.look_at_key(key, digest)
    assert held is not None
    assert (held.version, held.policy) == (version, {"rules": ["ada"]})
    assert view.of_key(key) is held
    assert await view.look_at_team(tenant.organisation_id, tenant.team_id) == held
    screened = dataclasses.replace(unscreened, input={"content": SCREENED}, policy=version)
    known = await calls.open_call(db, screened)
    assert isinstance(known, calls.Known)
    assert known.task_id == unscreened.task_id
    await policies.unset_policy(
        db, tenant.organisation_id, team_id=tenant.team_id, actor="ol_admin"
    )
    with pytest.raises(PolicyChanged):
        await calls.open_call(db, asked(tenant, policy=version))
    # Not even as a dead row, or in the log: the check comes before anything is written.
    await admin_db.run_untenanted("checkpoint")
    on_disk = b"".join(
        path.read_bytes()
        for path in (short_folder / "store").rglob("*")
        if path.is_file() and {"base", "pg_wal", "log"} & set(path.parts)
    )
    assert SCREENED.encode() in on_disk
    assert CANARY.encode() not in on_disk


async def test_decisions_and_originals_are_filed_with_the_call(
    db: Database, server: Server, tenant: Tenant, other_tenant: Tenant
) -> None:
    organisation = tenant.organisation_id
    version = await set_for(db, tenant, {"rules": [1]})
    seals = sealer()
    shelf = RedactionShelf(db, seals)
    task = uuid7()
    document = {"<EMAIL_ADDRESS_1>": CANARY}
    before = db.round_trips
    opening = asked(
        tenant,
        task_id=task,
        policy=version,
        idempotency_key="k",
        decisions=[decision(task, version)],
        redactions=shelf.seal(organisation, task, document),
    )
    known = await calls.open_call(db, opening)
    assert isinstance(known, calls.Known)
    closing = ending(task, decisions=[decision(task, version, place="output", outcome="flag")])
    closed = await calls.close_call(db, organisation, task, closing, None)
    assert db.round_trips - before == 2
    again = await calls.close_call(db, organisation, task, closing, None)
    assert again.already_settled
    assert again.billed_usd == closed.billed_usd
    filed = await read_decisions(db, organisation, task)
    assert [(d.place, d.outcome, d.policy_version) for d in filed] == [
        ("input", "redact", version),
        ("output", "flag", version),
    ]
    assert filed[0].findings == [FINDING]
    kept = await shelf.read(organisation, task)
    assert (kept.document, kept.version) == (document, 1)
    # A repetition is the first call's: nothing of the second is kept.
    repeat = dataclasses.replace(opening, task_id=uuid7())
    earlier = await calls.open_call(db, repeat)
    assert isinstance(earlier, calls.Known)
    assert (earlier.how, earlier.task_id) == ("earlier", task)
    assert await read_decisions(db, organisation, repeat.task_id) == []
    entries = await audit.find(db, organisation, action="safety.")
    assert {(e.action, e.subject, e.actor) for e in entries} == {
        ("safety.redact", str(task), "ol_test"),
        ("safety.flag", str(task), "ol_test"),
    }
    assert await audit.verify(db, organisation) is None
    # Two writers: the one that comes second reads again.
    grown = document | {"<EMAIL_ADDRESS_2>": "x@y.z"}
    assert await shelf.keep(organisation, task, grown, version=1)
    assert not await shelf.keep(organisation, task, document, version=1)
    assert not await shelf.keep(organisation, task, document, version=0)
    assert (await shelf.read(organisation, task)).document == grown
    # Sealed for this task of this organisation, and with this ring.
    assert (await shelf.read(other_tenant.organisation_id, task)).version == 0
    (row,) = rows(server, "select * from redactions where task_id = %s", task)
    with pytest.raises(PayloadRefused):
        seals.open(row["key_id"], row["sealed"], "redactions", str(organisation), str(uuid7()))
    with pytest.raises(PayloadRefused):
        await RedactionShelf(db, sealer()).read(organisation, task)
    by_rule = rows(server, "select * from safety_by_rule where organisation_id = %s", organisation)
    assert {(r["rule"], r["place"], r["findings"], r["tasks"]) for r in by_rule} == {
        ("mail", "input", 1, 1),
        ("mail", "output", 1, 1),
    }
    # Dry runs are on file, and no deed of anybody's.
    assert await note_decisions(
        db, organisation, [decision(uuid7(), version, mode="dry_run", outcome="allow")]
    )
    assert len(await audit.find(db, organisation, action="safety.")) == 2
    # The originals go with the rest of the task's content.
    await remove_content(db, older_than=timedelta(0), limit=1000)
    assert (await shelf.read(organisation, task)).version == 0


async def test_a_call_that_may_not_begin_is_a_refusal_on_file(
    db: Database, server: Server, tenant: Tenant
) -> None:
    version = await set_for(db, tenant, {"rules": [1]})
    task = uuid7()
    out = ScreenedOut(
        key_id=tenant.key_id,
        key_digest=token_digest(tenant.token),
        task_id=task,
        policy=version,
        user="ada",
        tags={"project": "x"},
        endpoint="chat",
        model="m",
        code="content_blocked",
        rule="mail",
        trace_id=None,
        decision=decision(task, version, outcome="block"),
        origin=Origin(),
    )
    assert await file_screened_out(db, out) is None
    (row,) = rows(server, "select * from refused_calls where refusal_id = %s", task)
    assert (row["code"], row["scope"], row["needed_usd"]) == (
        "content_blocked",
        "policy:mail",
        None,
    )
    assert [d.outcome for d in await read_decisions(db, tenant.organisation_id, task)] == ["block"]
    (entry,) = await audit.find(db, tenant.organisation_id, action="safety.")
    assert (entry.action, entry.subject) == ("safety.block", str(task))
    assert entry.detail["findings"] == [FINDING]
    stranger = dataclasses.replace(out, key_digest=token_digest("x"))
    assert await file_screened_out(db, stranger) == calls.Unauthenticated("wrong_secret")
    await set_for(db, tenant, {"rules": [2]})
    with pytest.raises(PolicyChanged):
        await file_screened_out(db, dataclasses.replace(out, task_id=uuid7()))
