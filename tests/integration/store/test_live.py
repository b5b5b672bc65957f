"""A call that this process makes is closed whatever breaks: nobody else would close it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from activities.dependencies import Dependencies
from activities.lane import live
from activities.lane.asking import Prompt
from activities.lane.live import LiveCall
from activities.lane.options import Option
from activities.lane.runs import Piece
from inference.upstream.messages import Delta
from settings import Settings
from store.catalogue import Deployment, Model, Price
from store.database import Database
from store.journal import AttemptUsage
from tests.integration.store.calls import CACHED, INPUT, MODEL, OUTPUT, sync_test_catalogue
from tests.integration.store.conftest import Server, Tenant
from tests.integration.store.test_calls import opened, rows
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
    option = Option(
        MODEL,
        Model(MODEL, "1", 2048, 512, ("chat",), "tok-1", "-"),
        Deployment("d1", MODEL, "scripted", ("127.0.0.1:1",), "scripted"),
        Price(MODEL, INPUT, CACHED, OUTPUT, datetime(2020, 1, 1, tzinfo=UTC)),
        "127.0.0.1:1",
    )
    call = LiveCall(
        deps=Dependencies(Settings(_env_file=None), db),
        spec=CallSpec("chat", MODEL, messages=[{"role": "user", "content": "hi"}]),
        options=[option],
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


async def _read(call: LiveCall) -> None:
    await call.begin()
    async for _ in call.pieces():
        pass
