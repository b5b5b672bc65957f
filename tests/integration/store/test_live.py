"""A call that this process makes is closed whatever breaks: nobody else would close it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from uuid_utils.compat import uuid7

from activities.dependencies import Dependencies
from activities.lane import closing, lease, live
from activities.lane.asking import Prompt
from activities.lane.embedding import Embedder
from activities.lane.lease import Lease
from activities.lane.live import LiveCall
from activities.lane.options import Option
from activities.lane.runs import Piece
from inference.errors import EngineUnavailable
from inference.upstream.messages import Delta
from settings import Settings
from store import call_owners
from store.catalogue import Deployment, Model, Price
from store.database import Database
from store.errors import DatabaseUnavailable
from store.identity import token_digest
from store.journal import AttemptUsage
from tests.integration.store.calls import CACHED, INPUT, MODEL, OUTPUT, sync_test_catalogue
from tests.integration.store.conftest import Server, Tenant
from tests.integration.store.test_calls import opened, rows
from tests.upstream import served
from workflows.contracts.call import CallSpec


class Breaks:
    """An attempt that breaks as nobody thought it could, after so many pieces."""

    def __init__(self, good: int) -> None:
        self.good = good
        self.closed = False

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        try:
            for number in range(self.good):
                yield Piece((Delta(text="a"),), [number], "a")
            raise RecursionError
        finally:
            self.closed = True

    async def used(self) -> AttemptUsage:
        return AttemptUsage(10, 0, 7, "engine")


@pytest.mark.parametrize("good", [0, 3])
async def test_what_nobody_thought_of_ends_the_call_and_is_paid_for_as_far_as_it_went(
    db: Database,
    admin_db: Database,
    server: Server,
    tenant: Tenant,
    monkeypatch: pytest.MonkeyPatch,
    good: int,
) -> None:
    await sync_test_catalogue(admin_db)
    known = await opened(db, tenant)
    run, ends = Breaks(good), []

    def ended(call: LiveCall, *, closed: bool) -> None:
        ends.append(closed)

    def attempt(*args: Any, **kwargs: Any) -> Breaks:
        return run

    monkeypatch.setattr(live, "TritonRun", attempt)
    call = LiveCall(
        deps=Dependencies(Settings(_env_file=None), db),
        spec=CallSpec("chat", MODEL, messages=[{"role": "user", "content": "hi"}]),
        options=[option("scripted", "127.0.0.1:1")],
        prompt=Prompt(list(range(10)), None, 9),
        organisation_id=tenant.organisation_id,
        task_id=known.task_id,
        created_at=known.created_at,
        cache_key=None,
        ended=ended,
    )
    with pytest.raises(RecursionError):
        await _read(call)
    assert run.closed
    assert ends == [True]
    (row,) = rows(
        server,
        "select t.status, m.outcome, m.usage_source, m.output_tokens as n"
        " from tasks t join model_calls m using (task_id) where t.task_id = %s",
        known.task_id,
    )
    assert (row["status"], row["n"], row["usage_source"]) == ("failed", 7, "engine")
    held = rows(
        server, "select held_usd from budgets where organisation_id = %s", tenant.organisation_id
    )
    assert {row["held_usd"] for row in held} == {Decimal(0)}


@pytest.mark.parametrize("answers", [True, False])
async def test_vectors_whose_call_cannot_be_closed_are_let_go_of(
    db: Database,
    admin_db: Database,
    tenant: Tenant,
    monkeypatch: pytest.MonkeyPatch,
    *,
    answers: bool,
) -> None:
    await sync_test_catalogue(admin_db)
    own = Lease(db, _nothing)
    await own.held()
    known = await opened(db, tenant, process_id=own.process_id)
    monkeypatch.setattr(closing, "OUTAGE_PATIENCE_S", 0.0)
    away = await Database.open(
        "postgresql://nobody:x@127.0.0.1:9/none", min_size=0, checkout_timeout_s=0.1
    )
    deps = Dependencies(Settings(_env_file=None), away)
    with served() as upstream:
        nobody = "http://127.0.0.1:9/v1"
        several = option("openai", nobody, upstream.url if answers else nobody)
        embedder = Embedder(deps, several, CallSpec("embeddings", MODEL), ["a"], own.give_up)
        with pytest.raises(DatabaseUnavailable if answers else EngineUnavailable):
            await embedder.make(known, 3, keep=False)
        await deps.close()
    assert known.task_id not in await _orphans(db)
    own.start()
    try:
        async with asyncio.timeout(10):
            while known.task_id not in await _orphans(db):
                await asyncio.sleep(0.02)
    finally:
        await own.stop()


async def test_a_call_that_may_be_opened_yet_is_looked_for_until_it_cannot(
    db: Database, admin_db: Database, server: Server, tenant: Tenant, monkeypatch: Any
) -> None:
    await sync_test_catalogue(admin_db)
    (longest,) = await db.run_untenanted(
        "select extract(epoch from current_setting('statement_timeout')::interval)::float8 as s"
    )
    assert lease.LOOKS_S[-1] > longest["s"] > 0
    monkeypatch.setattr(lease, "LOOKS_S", (0.0, 0.1, 2.0))
    monkeypatch.setattr(lease, "RENEW_EVERY_S", 0.05)
    own, task_id = Lease(db, _nothing), uuid7()
    own.doubt(tenant.key_id, token_digest(tenant.token), task_id)
    own.start()
    try:
        await asyncio.sleep(0.5)
        # Two looks are over when the statement gets its locks.
        await opened(db, tenant, task_id=task_id, process_id=own.process_id)
        async with asyncio.timeout(10):
            while rows(server, "select status from tasks where task_id = %s", task_id) != [
                {"status": "cancelled"}
            ]:
                await asyncio.sleep(0.05)
    finally:
        await own.stop()
    held = rows(
        server, "select held_usd from budgets where organisation_id = %s", tenant.organisation_id
    )
    assert {row["held_usd"] for row in held} == {Decimal(0)}


def option(engine: str, *urls: str) -> Option:
    """Return a candidate on an engine."""
    return Option(
        MODEL,
        Model(MODEL, "1", 2048, 512, ("chat",), "tok-1", "-"),
        Deployment("d1", MODEL, engine, urls, "scripted"),
        Price(MODEL, INPUT, CACHED, OUTPUT, datetime(2020, 1, 1, tzinfo=UTC)),
        urls[0],
    )


async def _nothing() -> None:
    pass


async def _orphans(db: Database) -> set[Any]:
    return {call.task_id for call in await call_owners.orphaned_calls(db, limit=1000)}


async def _read(call: LiveCall) -> None:
    await call.begin()
    async for _ in call.pieces():
        pass
