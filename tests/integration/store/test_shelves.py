"""Catalogue, cache, retrieval, blobs, audit, spend and identity."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from psycopg import errors as pg
from uuid_utils.compat import uuid7

from store import audit, blobs, cache, retrieval, spend
from store.catalogue import Deployment, Model, Price, Route, load_catalogue, sync_catalogue
from store.database import Database
from store.errors import NotFound
from store.identity import AuthFailure, Principal, authenticate, mint_token
from store.money import CacheWrite, Settlement, settle
from store.provision import create_key, set_key_enabled
from tests.integration.store.calls import (
    MODEL,
    admit_call,
    file_task,
    generate,
    stage,
    sync_test_catalogue,
)
from tests.integration.store.conftest import Server, Tenant

KEY = "ab" * 32


async def answer(
    db: Database,
    tenant: Tenant,
    *,
    collections: list[UUID] | None = None,
    key: str = KEY,
    between: object = None,
    ttl_s: float | None = None,
) -> None:
    """One call whose answer is offered to the cache; `between` runs after its admission."""
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id)
    generation = await stage(db, tenant, task_id)
    await generate(db, tenant, generation)
    if callable(between):
        await between()
    await settle(
        db,
        Settlement(
            tenant.organisation_id,
            task_id,
            1,
            f"{task_id}:1",
            "succeeded",
            generation_key=generation,
            finish_reason="stop",
            cache_write=CacheWrite(key, collections or [], ttl_s),
        ),
    )


async def collection_of(db: Database, tenant: Tenant) -> retrieval.Collection:
    made = await retrieval.create_collection(
        db,
        tenant.organisation_id,
        name=f"c {uuid7()}",
        embedding_model="mini",
        dimensions=3,
    )
    assert made is not None
    return made


async def put(
    db: Database, tenant: Tenant, collection: UUID, name: str, text: str
) -> tuple[UUID, bool]:
    return await retrieval.put_document(
        db, tenant.organisation_id, collection, external_id=name, title=name, text=text
    )


async def ingest(
    db: Database, tenant: Tenant, collection: UUID, name: str, passages: dict[str, list[float]]
) -> UUID:
    """Takes a document in and publishes it, a passage a line."""
    org = tenant.organisation_id
    document, _ = await put(db, tenant, collection, name, "\n".join(passages))
    state = await retrieval.get_document(db, org, document)
    assert state is not None
    await retrieval.stage_chunks(db, org, document, state.version, list(passages))
    await retrieval.store_embeddings(
        db, org, document, state.version, dict(enumerate(passages.values()))
    )
    assert await retrieval.publish(db, org, document, state.version)
    return document


async def test_catalogue_comes_back_as_it_was_put(admin_db: Database, db: Database) -> None:
    await sync_test_catalogue(admin_db)
    before = db.round_trips
    catalogue = await load_catalogue(db)
    assert db.round_trips - before == 1
    assert catalogue.models[MODEL].capabilities == ("chat", "json_schema")
    assert catalogue.prices[MODEL].output_usd_per_million == Decimal("7.654321")
    assert "unpriced-model" not in catalogue.prices
    assert [d.id for d in catalogue.deployments_of(MODEL)] == ["d1"]
    assert catalogue.routes["default"].candidates == ({"model": MODEL},)
    with pytest.raises(pg.InsufficientPrivilege):
        await db.run_untenanted("delete from models")


async def test_only_what_can_change_an_answer_changes_the_digest(admin_db: Database) -> None:
    digest = await sync_test_catalogue(admin_db)
    assert await sync_test_catalogue(admin_db) == digest
    model = Model(MODEL, "1", 2048, 512, ("chat", "json_schema"), "tok-1", "Apache-2.0")
    other = Model("unpriced-model", "1", 2048, 512, ("chat",), "tok-1", "Apache-2.0")
    route = Route("default", "first", ({"model": MODEL},))
    elsewhere = Deployment("d1", MODEL, "scripted", ("10.0.0.1:1",), "scripted")
    now = datetime.now(UTC)
    price = Price(MODEL, Decimal(1), Decimal(1), Decimal(2), now - timedelta(seconds=1))
    try:
        assert (
            await sync_catalogue(admin_db, [model, other], [elsewhere], [price], [route]) == digest
        )
        assert (await load_catalogue(admin_db)).prices[MODEL].output_usd_per_million == 2
        newer = Model(MODEL, "2", 2048, 512, ("chat", "json_schema"), "tok-1", "Apache-2.0")
        assert await sync_catalogue(admin_db, [newer, other], [elsewhere], [], [route]) != digest
    finally:
        await admin_db.run_untenanted(
            "delete from prices where valid_from = %s", (price.valid_from,)
        )
        await sync_test_catalogue(admin_db)


async def test_an_answer_is_found_until_something_it_rests_on_changes(
    db: Database, admin_db: Database, tenant: Tenant, other_tenant: Tenant
) -> None:
    await sync_test_catalogue(admin_db)
    org = tenant.organisation_id
    collection = await collection_of(db, tenant)
    await answer(db, tenant, collections=[collection.id])
    hit = await cache.look_up(db, org, KEY, [collection.id])
    assert hit is not None
    assert (hit.text, hit.model, hit.finish_reason) == ("hello world", MODEL, "stop")
    assert (hit.prompt_tokens, hit.completion_tokens) == (100, 10)
    assert hit.saved_usd > 0
    assert await cache.look_up(db, org, "cd" * 32, [collection.id]) is None
    assert await cache.look_up(db, org, KEY, []) is None
    assert await cache.look_up(db, other_tenant.organisation_id, KEY, [collection.id]) is None
    await ingest(db, tenant, collection.id, "new", {"x": [1, 0, 0]})
    assert await cache.look_up(db, org, KEY, [collection.id]) is None


async def test_a_change_during_the_call_keeps_its_answer_out_of_the_cache(
    db: Database, admin_db: Database, tenant: Tenant
) -> None:
    await sync_test_catalogue(admin_db)
    collection = await collection_of(db, tenant)

    async def change() -> None:
        await ingest(db, tenant, collection.id, "meanwhile", {"x": [1, 0, 0]})

    await answer(db, tenant, collections=[collection.id], between=change)
    assert await cache.look_up(db, tenant.organisation_id, KEY, [collection.id]) is None
    await answer(db, tenant, collections=[collection.id])
    assert await cache.look_up(db, tenant.organisation_id, KEY, [collection.id]) is not None


async def test_entries_expire_and_follow_the_catalogue(
    db: Database, admin_db: Database, tenant: Tenant
) -> None:
    await sync_test_catalogue(admin_db)
    org = tenant.organisation_id
    await answer(db, tenant, key="11" * 32, ttl_s=-1)
    assert await cache.look_up(db, org, "11" * 32, []) is None
    await answer(db, tenant, key="22" * 32, ttl_s=60)
    assert await cache.look_up(db, org, "22" * 32, []) is not None
    try:
        await admin_db.run_untenanted("update catalogue_state set digest = 'other'")
        assert await cache.look_up(db, org, "22" * 32, []) is None
    finally:
        await sync_test_catalogue(admin_db)


async def test_an_unchanged_document_changes_nothing(db: Database, tenant: Tenant) -> None:
    org = tenant.organisation_id
    collection = await collection_of(db, tenant)
    document = await ingest(db, tenant, collection.id, "a", {"one": [1, 0, 0], "two": [0, 1, 0]})
    revision = (await retrieval.list_collections(db, org))[0].revision
    assert await put(db, tenant, collection.id, "a", "one\ntwo") == (document, False)
    state = await retrieval.get_document(db, org, document)
    assert state is not None
    assert (state.status, state.version, state.current_version, state.chunk_count) == (
        "ready",
        1,
        1,
        2,
    )
    assert (await retrieval.list_collections(db, org))[0].revision == revision
    with pytest.raises(NotFound):
        await put(db, tenant, uuid7(), "a", "x")


async def test_a_new_text_is_found_all_at_once(db: Database, tenant: Tenant) -> None:
    org = tenant.organisation_id
    collection = await collection_of(db, tenant)
    document = await ingest(db, tenant, collection.id, "a", {"old": [1, 0, 0]})
    assert await put(db, tenant, collection.id, "a", "new") == (document, True)
    assert await retrieval.document_text(db, org, document) == "new"
    await retrieval.stage_chunks(db, org, document, 2, ["new", "newer"])
    assert await retrieval.staged_chunks(db, org, document, 2, start=1, count=5) == [
        retrieval.StagedChunk(1, "newer")
    ]
    await retrieval.stage_chunks(db, org, document, 2, ["new"])  # a retry
    await retrieval.store_embeddings(db, org, document, 2, {0: [1, 0, 0]})

    async def found() -> list[str]:
        hits = await retrieval.search(db, org, [collection.id], [1, 0, 0], 5)
        return [hit.text for hit in hits]

    assert await found() == ["old"]
    assert not await retrieval.publish(db, org, document, 1)
    assert await retrieval.publish(db, org, document, 2)
    assert await retrieval.publish(db, org, document, 2)
    assert await found() == ["new"]
    assert await put(db, tenant, collection.id, "a", "broken") == (document, True)
    assert await retrieval.fail_document(db, org, document, 3, {"message": "no"})
    state = await retrieval.get_document(db, org, document)
    assert state is not None
    assert (state.status, state.current_version, state.error) == ("failed", 2, {"message": "no"})
    assert await found() == ["new"]


async def test_search_is_exact_ordered_and_fenced(
    db: Database, tenant: Tenant, other_tenant: Tenant
) -> None:
    org = tenant.organisation_id
    first, second = await collection_of(db, tenant), await collection_of(db, tenant)
    await ingest(db, tenant, first.id, "a", {"east": [1, 0, 0], "north": [0, 1, 0]})
    await ingest(db, tenant, second.id, "b", {"north-east": [1, 1, 0], "west": [-1, 0, 0]})
    hits = await retrieval.search(db, org, [first.id, second.id], [1, 0.1, 0], 3)
    assert [h.text for h in hits] == ["east", "north-east", "north"]
    assert hits[0].score == pytest.approx(0.995, abs=0.001)
    assert {h.title for h in hits} == {"a", "b"}
    assert [h.text for h in await retrieval.search(db, org, [second.id], [1, 0, 0], 1)] == [
        "north-east"
    ]
    stranger = other_tenant.organisation_id
    assert await retrieval.search(db, stranger, [first.id, second.id], [1, 0, 0], 9) == []
    assert await retrieval.get_collection_by_name_or_id(db, stranger, str(first.id)) is None
    by_id = await retrieval.get_collection_by_name_or_id(db, org, str(first.id))
    assert by_id is not None
    assert await retrieval.get_collection_by_name_or_id(db, org, first.name) == by_id
    again = await retrieval.create_collection(
        db, org, name=first.name, embedding_model="mini", dimensions=3
    )
    assert again is None


async def test_blobs_are_kept_by_their_content(
    db: Database, tenant: Tenant, other_tenant: Tenant
) -> None:
    org = tenant.organisation_id
    data = bytes(range(256)) * 100
    sha = await blobs.put(db, org, data, "application/octet-stream")
    assert await blobs.put(db, org, data, "application/octet-stream") == sha
    assert await blobs.get(db, org, sha) == data
    with pytest.raises(NotFound):
        await blobs.get(db, other_tenant.organisation_id, sha)


async def test_the_audit_chain_has_no_fork_and_shows_every_tampering(
    db: Database, admin_db: Database, tenant: Tenant
) -> None:
    org = tenant.organisation_id

    async def note(n: int) -> int:
        return await audit.append(
            db, org, actor="ol_x", action="key.disable", subject=str(n), detail={"n": n}
        )

    assert sorted(await asyncio.gather(*(note(n) for n in range(32)))) == list(range(1, 33))
    assert await audit.verify(db, org) is None
    assert [e.seq for e in await audit.read(db, org, after=30)] == [31, 32]
    attacks = {
        7: "update audit_log set detail = '{}' where seq = 7",
        9: "delete from audit_log where seq = 9",
        30: "delete from audit_log where seq >= 30",
        12: "update audit_log set digest = sha256('x') where seq = 12",
        32: "update audit_heads set digest = sha256('x') where organisation_id = '{org}'",
        1: "delete from audit_heads where organisation_id = '{org}'",
    }
    for expected, attack in attacks.items():
        # Even with the trigger off, as only a superuser can; undone again afterwards.
        async with admin_db.transaction(org) as superuser:
            await superuser.execute("savepoint before")
            await superuser.execute("set local session_replication_role = replica")
            sql = attack.replace("{org}", str(org))
            if "audit_log" in sql:
                sql += f" and organisation_id = '{org}'"
            await superuser.execute(sql)
            found = await superuser.execute("select audit_verify() as bad")
            assert found == [{"bad": expected}], attack
            await superuser.execute("rollback to savepoint before")
    assert await audit.verify(db, org) is None


async def test_spend_adds_up_by_anything(db: Database, admin_db: Database, tenant: Tenant) -> None:
    await sync_test_catalogue(admin_db)
    org = tenant.organisation_id
    for n in range(3):
        await answer(db, tenant, key=f"{n:064x}")
    now = datetime.now(UTC)
    period = {"since": now - timedelta(hours=1), "until": now + timedelta(hours=1)}
    total: Decimal | None = None
    for group_by in ("organisation", "team", "key", "user", "model", "route", "day", "month"):
        rows = await spend.query(db, org, group_by=group_by, **period)  # type: ignore[arg-type]
        assert len(rows) == 1, group_by
        assert (rows[0].calls, rows[0].attempts, rows[0].output_tokens) == (3, 3, 30)
        assert total in (None, rows[0].billed_usd)
        total = rows[0].billed_usd
    tags = await spend.query(db, org, group_by="tag", **period)  # type: ignore[arg-type]
    assert [(r.group, r.billed_usd) for r in tags] == [("project=x", total)]
    tasks = await spend.query(db, org, group_by="task", **period)  # type: ignore[arg-type]
    assert sum(r.billed_usd for r in tasks) == total
    one = await spend.query(
        db,
        org,
        group_by="step",
        filters={"task": UUID(str(tasks[0].group))},
        **period,  # type: ignore[arg-type]
    )
    assert [r.group for r in one] == [f"{tasks[0].group}:1"]
    assert await spend.query(db, org, group_by="model", filters={"user": "bob"}, **period) == []  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="filter"):
        await spend.query(db, org, group_by="model", filters={"1=1; --": 1}, **period)  # type: ignore[arg-type]
    for view in (
        "spend_by_organisation_day",
        "spend_by_team_month",
        "spend_by_key",
        "spend_by_user",
        "spend_by_tag",
        "spend_by_model",
        "spend_by_task",
        "spend_by_step",
    ):
        sums = await db.run(org, f"select sum(billed_usd) as billed from {view}")
        assert sums == [{"billed": total}], view
    for view in ("waste_by_cause", "cache_savings"):
        assert await db.run(org, f"select * from {view}") == []


async def test_a_token_opens_only_what_it_should(
    server: Server, db: Database, tenant: Tenant
) -> None:
    principal = await authenticate(db, tenant.token)
    assert isinstance(principal, Principal)
    assert (principal.organisation_id, principal.team_id, principal.key_id) == (
        tenant.organisation_id,
        tenant.team_id,
        tenant.key_id,
    )
    assert tenant.token.startswith(principal.key_prefix)
    secret_gone = tenant.token[:-1] + ("A" if tenant.token[-1] != "A" else "B")
    expired = create_key(
        server.admin_url,
        tenant.organisation_id,
        tenant.team_id,
        "old",
        expires_at=datetime.now(UTC) - timedelta(seconds=1),
    )
    disabled = create_key(server.admin_url, tenant.organisation_id, tenant.team_id, "off")
    set_key_enabled(server.admin_url, tenant.organisation_id, disabled.key_id, enabled=False)
    for token, reason in {
        secret_gone: "wrong_secret",
        mint_token(uuid7()): "unknown",
        expired.token: "expired",
        disabled.token: "disabled",
        "": "malformed",
        tenant.token + "x": "malformed",
        tenant.token.upper(): "malformed",
        "ol_\x00": "malformed",
    }.items():
        assert await authenticate(db, token) == AuthFailure(reason)  # type: ignore[arg-type]
    stored = await db.run(tenant.organisation_id, "select * from api_keys")
    assert tenant.token.rsplit("_", 1)[-1] not in str(stored)
