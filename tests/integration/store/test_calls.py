"""Calls without a workflow: one statement opens one and one closes it; refusals leave no trace."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row
from uuid_utils.compat import uuid7

from store import audit, call_owners, calls, keys
from store.database import Database
from store.errors import Fenced
from store.identity import token_digest
from store.journal import AttemptUsage, begin_attempt
from store.refusals import Refusal
from tests.integration.store.calls import MODEL, sync_test_catalogue
from tests.integration.store.conftest import Server, Tenant, make_tenant

PRICE = Decimal("0.01")
PROCESS = uuid7()


def asked(tenant: Tenant, **fields: Any) -> calls.Asked:
    plain = calls.Asked(
        key_id=tenant.key_id,
        key_digest=token_digest(tenant.token),
        task_id=uuid7(),
        idempotency_key=None,
        request_digest="d",
        input={"messages": []},
        user="ada",
        tags={"project": "x"},
        endpoint="chat",
        model=MODEL,
        route=MODEL,
        stored=True,
        amount_usd=PRICE,
        cache_key=None,
        process_id=PROCESS,
        staged=calls.Staged(MODEL, "1", "tok-1", "d1", "127.0.0.1:1", prompt_ids=range(10)),
        trace_id=None,
    )
    return dataclasses.replace(plain, **fields)


def ending(task_id: UUID, **fields: Any) -> calls.Ending:
    plain = calls.Ending(
        generation_key=f"{task_id}:1#0",
        epoch=1,
        outcome="succeeded",
        usage=AttemptUsage(10, 0, 3, "engine"),
        token_ids=[1, 2, 3],
        text="abc",
        finish_reason="stop",
        answer={"choices": [{"text": "abc", "finish_reason": "stop"}]},
        answer_usage={"prompt_tokens": 10, "completion_tokens": 3},
    )
    return dataclasses.replace(plain, **fields)


async def opened(db: Database, tenant: Tenant, **fields: Any) -> calls.Known:
    known = await calls.open_call(db, asked(tenant, **fields))
    assert isinstance(known, calls.Known), known
    return known


def rows(server: Server, sql: str, *values: Any) -> list[dict[str, Any]]:
    with psycopg.connect(server.admin_url, row_factory=dict_row) as connection:
        return connection.execute(sql.encode(), values).fetchall()


@pytest.fixture(autouse=True)
async def _catalogue(admin_db: Database) -> None:
    await sync_test_catalogue(admin_db)


async def test_a_call_is_two_round_trips(db: Database, server: Server, tenant: Tenant) -> None:
    await db.run_untenanted("select 1")
    before = db.round_trips
    known = await opened(db, tenant)
    closed = await calls.close_call(
        db, tenant.organisation_id, known.task_id, ending(known.task_id), None
    )
    assert db.round_trips - before == 2
    assert (known.how, closed.prompt_tokens, closed.completion_tokens) == ("go", 10, 3)
    (line,) = rows(server, "select * from model_calls where task_id = %s", known.task_id)
    assert line["outcome"] == "succeeded"
    assert line["billed_usd"] == closed.billed_usd > 0
    (task,) = rows(server, "select * from tasks where task_id = %s", known.task_id)
    assert (task["status"], task["kind"], task["answer"]) == ("succeeded", "call", "abc")
    budgets = rows(
        server, "select * from budgets where organisation_id = %s", tenant.organisation_id
    )
    assert {(b["held_usd"], b["spent_usd"]) for b in budgets} == {(Decimal(0), closed.billed_usd)}
    events = rows(
        server,
        "select seq from task_events where task_id = %s"
        " union all select event_seq from token_chunks where task_id = %s order by 1",
        known.task_id,
        known.task_id,
    )
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    again = await calls.close_call(
        db, tenant.organisation_id, known.task_id, ending(known.task_id), None
    )
    assert again.already_settled
    assert again.billed_usd == closed.billed_usd


async def test_calls_of_one_tenant_are_closed_each(
    db: Database, server: Server, tenant: Tenant
) -> None:
    first, second = await opened(db, tenant), await opened(db, tenant)
    for known in (second, first):
        closed = await calls.close_call(
            db, tenant.organisation_id, known.task_id, ending(known.task_id), None
        )
        assert (closed.already_settled, closed.completion_tokens) == (False, 3)
    lines = rows(
        server,
        "select outcome from model_calls where organisation_id = %s",
        tenant.organisation_id,
    )
    assert [line["outcome"] for line in lines] == ["succeeded", "succeeded"]


async def test_a_key_that_repeats_itself_gets_the_first_answer(
    db: Database, tenant: Tenant
) -> None:
    first = await opened(db, tenant, idempotency_key="k")
    waiting = await opened(db, tenant, idempotency_key="k")
    assert (waiting.how, waiting.task_id, waiting.status) == ("earlier", first.task_id, "running")
    await calls.close_call(db, tenant.organisation_id, first.task_id, ending(first.task_id), None)
    done = await opened(db, tenant, idempotency_key="k")
    assert done.answer == {"choices": [{"text": "abc", "finish_reason": "stop"}]}
    assert done.conflict is False
    other = await opened(db, tenant, idempotency_key="k", request_digest="other")
    assert other.conflict is True


async def test_a_repetition_says_who_answered_and_not_who_was_asked(
    db: Database, tenant: Tenant
) -> None:
    first = await opened(db, tenant, idempotency_key="k", model="default")
    await calls.close_call(db, tenant.organisation_id, first.task_id, ending(first.task_id), None)
    assert (await opened(db, tenant, idempotency_key="k", model="default")).model == MODEL


async def test_of_many_at_one_moment_one_is_made(db: Database, tenant: Tenant) -> None:
    made = await asyncio.gather(*(opened(db, tenant, idempotency_key="k") for _ in range(16)))
    assert Counter(known.how for known in made) == {"go": 1, "earlier": 15}
    assert len({known.task_id for known in made}) == 1


async def test_exactly_those_are_let_through_that_fit(db: Database, server: Server) -> None:
    tenant = make_tenant(server, team_cap=PRICE * 3)
    made = await asyncio.gather(*(calls.open_call(db, asked(tenant)) for _ in range(20)))
    refused = [each for each in made if isinstance(each, Refusal)]
    assert len(refused) == 17
    assert {(each.code, each.scope) for each in refused} == {("budget_exceeded", "team")}
    kept = rows(
        server, "select * from refused_calls where organisation_id = %s", tenant.organisation_id
    )
    assert len(kept) == 17
    assert {row["limit_usd"] for row in kept} == {PRICE * 3}
    of_calls = "select count(*) as n from tasks where organisation_id = %s"
    assert rows(server, of_calls, tenant.organisation_id)[0]["n"] == 3
    assert await audit.verify(db, tenant.organisation_id) is None
    entries = await audit.read(db, tenant.organisation_id)
    assert [entry.action for entry in entries] == ["call.refused"] * 17


async def test_what_a_restricted_key_may_not_use_is_refused_and_on_file(
    db: Database, server: Server, tenant: Tenant
) -> None:
    await keys.change_key(db, tenant.organisation_id, "test", tenant.key_id, {"models": ["other"]})
    refused = await calls.open_call(db, asked(tenant, input={"messages": [], "model": MODEL}))
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.scope) == ("key_restricted", "model")
    (kept,) = rows(
        server, "select * from refused_calls where organisation_id = %s", tenant.organisation_id
    )
    assert (kept["code"], kept["scope"], kept["model"]) == ("key_restricted", "model", MODEL)
    assert (
        rows(server, "select 1 from tasks where organisation_id = %s", kept["organisation_id"])
        == []
    )
    assert [entry.action for entry in await audit.read(db, tenant.organisation_id)] == [
        "key.changed",
        "call.refused",
    ]
    assert await audit.verify(db, tenant.organisation_id) is None


async def test_an_equal_call_is_answered_by_the_cache(
    db: Database, server: Server, tenant: Tenant, other_tenant: Tenant
) -> None:
    first = await opened(db, tenant, cache_key="c")
    assert first.how == "go"
    closed = await calls.close_call(
        db, tenant.organisation_id, first.task_id, ending(first.task_id, cache_key="c"), None
    )
    before = db.round_trips
    hit = await opened(db, tenant, cache_key="c", idempotency_key="h")
    assert db.round_trips - before == 1
    assert (hit.how, hit.billed_usd, hit.saved_usd) == ("cached", 0, closed.billed_usd)
    assert hit.answer is not None
    assert hit.usage == {"prompt_tokens": 10, "completion_tokens": 3}
    (line,) = rows(server, "select * from model_calls where task_id = %s", hit.task_id)
    assert (line["outcome"], line["billed_usd"]) == ("cached", 0)
    (entry,) = await audit.read(db, tenant.organisation_id)
    assert (entry.action, entry.subject) == ("call.cached", str(hit.task_id))
    repeated = await opened(db, tenant, cache_key="c", idempotency_key="h")
    assert (repeated.how, repeated.task_id, repeated.status) == (
        "earlier",
        hit.task_id,
        "succeeded",
    )
    assert repeated.answer == hit.answer
    assert (await opened(db, other_tenant, cache_key="c")).how == "go"


async def test_a_call_that_ends_and_a_hit_of_its_answer_do_not_wait_for_each_other(
    db: Database, server: Server, tenant: Tenant
) -> None:
    # Both are written before there is an answer, for less than they cost: that is audited.
    org, tiny = tenant.organisation_id, Decimal("0.000000001")
    first, second = [await opened(db, tenant, cache_key="c", amount_usd=tiny) for _ in range(2)]
    await calls.close_call(db, org, first.task_id, ending(first.task_id, cache_key="c"), None)
    async with await psycopg.AsyncConnection.connect(server.app_url) as chain:
        await chain.execute("select set_config('overline.organisation_id', %s, true)", (str(org),))
        await chain.execute("select audit_append('test', 'a', 'b', '{}')")
        ends = asyncio.create_task(
            calls.close_call(db, org, second.task_id, ending(second.task_id, cache_key="c"), None)
        )
        await waiting(server, 1)
        hit = asyncio.create_task(opened(db, tenant, cache_key="c"))
        await waiting(server, 2)
        await chain.commit()
    assert not (await ends).already_settled
    assert (await hit).how == "cached"
    assert await audit.verify(db, org) is None


async def waiting(server: Server, count: int) -> None:
    """Wait until so many statements wait for locks."""
    sql = "select count(*) as n from pg_stat_activity where wait_event_type = 'Lock'"
    async with asyncio.timeout(10):
        while rows(server, sql)[0]["n"] < count:
            await asyncio.sleep(0.02)


async def test_a_bad_token_opens_nothing(db: Database, tenant: Tenant) -> None:
    for fields, reason in (
        ({"key_digest": token_digest("x")}, "wrong_secret"),
        ({"key_id": uuid7()}, "unknown"),
    ):
        refused = await calls.open_call(db, asked(tenant, **fields))
        assert refused == calls.Unauthenticated(reason)


async def test_another_candidate_takes_over(db: Database, server: Server, tenant: Tenant) -> None:
    known = await opened(db, tenant)
    await calls.next_candidate(
        db,
        tenant.organisation_id,
        known.task_id,
        candidate=1,
        usage=AttemptUsage(0, 0, 0, "engine"),
        error_code="unavailable",
        staged=calls.Staged(MODEL, "1", "tok-1", "d1", "127.0.0.1:2", prompt_ids=range(10)),
        trace_id=None,
    )
    await calls.close_call(
        db,
        tenant.organisation_id,
        known.task_id,
        ending(known.task_id, generation_key=f"{known.task_id}:1#1"),
        None,
    )
    lines = rows(
        server,
        "select outcome from model_calls where task_id = %s order by candidate",
        known.task_id,
    )
    assert [line["outcome"] for line in lines] == ["failed", "succeeded"]


async def test_who_was_overtaken_closes_nothing(db: Database, tenant: Tenant) -> None:
    known = await opened(db, tenant)
    begun = await begin_attempt(
        db,
        organisation_id=tenant.organisation_id,
        generation_key=f"{known.task_id}:1#0",
        replica="r",
        temporal_attempt=1,
    )
    assert begun.epoch == 2
    with pytest.raises(Fenced):
        await calls.close_call(
            db, tenant.organisation_id, known.task_id, ending(known.task_id), None
        )


async def test_calls_of_a_dead_process_are_found_and_handed_over(
    db: Database, tenant: Tenant
) -> None:
    dead, alive = uuid7(), uuid7()
    await call_owners.renew_process(db, alive, 60)
    await call_owners.renew_process(db, dead, -1)
    lost = await opened(db, tenant, process_id=dead)
    await opened(db, tenant, process_id=alive)
    found = {call.task_id for call in await call_owners.orphaned_calls(db, limit=1000)}
    assert lost.task_id in found
    own = [
        call
        for call in await call_owners.orphaned_calls(db, limit=1000)
        if call.organisation_id == tenant.organisation_id
    ]
    assert [call.task_id for call in own] == [lost.task_id]
    await call_owners.hand_over(db, tenant.organisation_id, lost.task_id, "run")
    assert lost.task_id not in {c.task_id for c in await call_owners.orphaned_calls(db, limit=1000)}
    await call_owners.forget_process(db, alive)
    known = await calls.read_call(db, tenant.organisation_id, lost.task_id)
    assert known is not None
    assert known.status == "running"


async def test_a_cancelled_call_owes_what_was_made(
    db: Database, server: Server, tenant: Tenant
) -> None:
    known = await opened(
        db,
        tenant,
        staged=calls.Staged(MODEL, "1", "", "d1", "http://up", likely_prompt=10),
    )
    closed = await calls.close_call(
        db,
        tenant.organisation_id,
        known.task_id,
        ending(
            known.task_id,
            outcome="cancelled",
            usage=AttemptUsage(10, 0, 5, "estimate"),
            token_ids=[],
            text="tok tok tok tok tok ",
        ),
        None,
    )
    assert (closed.prompt_tokens, closed.completion_tokens) == (10, 5)
    (line,) = rows(server, "select * from model_calls where task_id = %s", known.task_id)
    assert (line["outcome"], line["output_tokens"], line["waste_usd"]) == ("cancelled", 5, 0)
    (task,) = rows(server, "select status from tasks where task_id = %s", known.task_id)
    assert task["status"] == "cancelled"
