"""Money: never over, nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import errors as pg

from store.budgets import set_task_budget
from store.database import Database
from store.errors import AlreadySettled, NotAdmitted, NotFound
from store.journal import AttemptUsage, append_chunk, begin_attempt, resolve_attempt, restart
from store.money import Admission, CacheWrite, Charge, Settlement, TaskFinish, settle
from store.provision import create_key, create_team, set_budget, set_key_enabled
from store.refusals import Refusal
from store.tasks import discard_task, finish_task, get_task, list_steps, submit_task
from tests.integration.store.calls import (
    CACHED,
    INPUT,
    OUTPUT,
    admit_call,
    file_task,
    generate,
    stage,
    sync_test_catalogue,
)
from tests.integration.store.conftest import Server, Tenant, make_tenant


@pytest.fixture(autouse=True)
async def _catalogue(admin_db: Database) -> None:
    await sync_test_catalogue(admin_db)


async def settle_call(
    db: Database,
    tenant: Tenant,
    task_id: UUID,
    step: int = 1,
    *,
    winner: str | None = None,
    outcome: Any = "succeeded",
    **more: Any,
) -> Charge:
    return await settle(
        db,
        Settlement(
            tenant.organisation_id,
            task_id,
            step,
            f"{task_id}:{step}",
            outcome,
            generation_key=winner,
            **more,
        ),
    )


async def budgets(db: Database, organisation_id: UUID) -> dict[str, dict[str, Any]]:
    rows = await db.run(organisation_id, "select * from budgets order by depth")
    return {row["scope"]: row for row in rows}


async def assert_conserved(db: Database, organisation_id: UUID) -> None:
    """Every budget holds exactly what its open holds reserve and has spent what was billed."""
    rows = await db.run(
        organisation_id,
        """
        select b.scope, b.held_usd, b.spent_usd + b.overage_usd as charged,
               (select coalesce(sum(h.amount_usd), 0) from holds h
                 where h.state = 'held' and b.budget_id = any (h.budget_ids)) as holds,
               (select coalesce(sum(c.billed_usd), 0) from model_calls c
                 where case b.scope when 'organisation' then true
                       when 'team' then c.team_id = b.scope_id
                       when 'key' then c.key_id = b.scope_id
                       else c.task_id = b.scope_id end) as billed,
               b.cap_usd is null or b.held_usd + b.spent_usd <= b.cap_usd as within,
               b.wished_usd is null
               or b.cap_usd = greatest(b.wished_usd, b.held_usd + b.spent_usd) as as_wished
          from budgets b
        """,
    )
    assert rows
    for row in rows:
        assert row["held_usd"] == row["holds"], row
        assert row["charged"] == row["billed"], row
        assert row["within"], row
        assert row["as_wished"], row


async def test_of_many_at_once_exactly_those_pass_that_fit(server: Server, db: Database) -> None:
    tenant = make_tenant(server, organisation_cap=Decimal("1.00"))
    tasks = [await file_task(db, tenant) for _ in range(32)]
    answers = await asyncio.gather(
        *(admit_call(db, tenant, task, amount=Decimal("0.10")) for task in tasks)
    )
    refusals = [a for a in answers if isinstance(a, Refusal)]
    assert len(answers) - len(refusals) == 10
    for refusal in refusals:
        assert (refusal.code, refusal.scope) == ("budget_exceeded", "organisation")
        assert refusal.limit_usd == 1
        assert refusal.held_usd == 1
        assert refusal.spent_usd == 0
        assert refusal.needed_usd == Decimal("0.10")
        assert refusal.may_pass_later
    await assert_conserved(db, tenant.organisation_id)


@pytest.mark.parametrize("tight", ["task", "key", "team", "organisation"])
async def test_each_level_refuses_and_a_refusal_leaves_no_trace(
    server: Server, db: Database, tight: str
) -> None:
    caps = {
        level: Decimal("0.05") if level == tight else Decimal("9")
        for level in ("task", "key", "team", "organisation")
    }
    tenant = make_tenant(
        server,
        organisation_cap=caps["organisation"],
        team_cap=caps["team"],
        key_cap=caps["key"],
    )
    task_id = await file_task(db, tenant, max_cost=caps["task"])
    before = await budgets(db, tenant.organisation_id)
    refusal = await admit_call(db, tenant, task_id, amount=Decimal("0.050000001"))
    assert isinstance(refusal, Refusal)
    assert (refusal.scope, refusal.limit_usd) == (tight, Decimal("0.05"))
    assert not refusal.may_pass_later
    assert await budgets(db, tenant.organisation_id) == before
    assert await db.run(tenant.organisation_id, "select 1 from holds") == []
    assert await list_steps(db, tenant.organisation_id, task_id) == []
    assert isinstance(await admit_call(db, tenant, task_id, amount=Decimal("0.05")), Admission)


async def test_admission_is_repeatable(db: Database, tenant: Tenant) -> None:
    task_id = await file_task(db, tenant)
    answers = await asyncio.gather(*(admit_call(db, tenant, task_id) for _ in range(8)))
    assert len({a.hold_id for a in answers if isinstance(a, Admission)}) == 1
    held = (await budgets(db, tenant.organisation_id))["organisation"]["held_usd"]
    assert held == Decimal("0.01")
    await settle_call(db, tenant, task_id, outcome="failed")
    again = await admit_call(db, tenant, task_id)
    assert again == answers[0]
    await assert_conserved(db, tenant.organisation_id)


async def test_settlement_happens_once_even_when_many_try(db: Database, tenant: Tenant) -> None:
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id)
    key = await stage(db, tenant, task_id)
    await generate(db, tenant, key)
    charges = await asyncio.gather(
        *(settle_call(db, tenant, task_id, winner=key) for _ in range(8))
    )
    assert [c.already_settled for c in charges].count(False) == 1
    assert len({c.billed_usd for c in charges}) == 1
    rows = await db.run(tenant.organisation_id, "select billed_usd from model_calls")
    assert [r["billed_usd"] for r in rows] == [charges[0].billed_usd]
    await assert_conserved(db, tenant.organisation_id)


async def test_keys_and_tasks_that_ended_are_refused(
    server: Server, db: Database, tenant: Tenant
) -> None:
    task_id = await file_task(db, tenant)
    set_key_enabled(server.admin_url, tenant.organisation_id, tenant.key_id, enabled=False)
    refusal = await admit_call(db, tenant, task_id)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.scope, refusal.limit_usd) == ("key_disabled", "key", None)
    set_key_enabled(server.admin_url, tenant.organisation_id, tenant.key_id, enabled=True)
    await finish_task(db, tenant.organisation_id, task_id, status="cancelled")
    refusal = await admit_call(db, tenant, task_id)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "task_cancelled"
    other = await file_task(db, tenant, key="again")
    assert await discard_task(db, tenant.organisation_id, other)
    refusal = await admit_call(db, tenant, other)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "task_discarded"
    assert await file_task(db, tenant, key="again") != other


async def test_an_interrupted_attempt_is_billed_once_and_the_rest_is_waste(
    db: Database, tenant: Tenant
) -> None:
    """Attempt 1 dies with 6 tokens in the journal of 8 produced; attempt 2 goes on to 10."""
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id)
    key = await stage(db, tenant, task_id, prompt=100)
    org = tenant.organisation_id
    first = await begin_attempt(
        db, organisation_id=org, generation_key=key, replica="a", temporal_attempt=1
    )
    assert await append_chunk(
        db,
        organisation_id=org,
        generation_key=key,
        epoch=1,
        seq=0,
        token_ids=[1, 2, 3, 4, 5, 6],
        text="abcdef",
    )
    assert first.generated_ids == []
    epoch = await generate(db, tenant, key, tokens=4, prompt=106, cached=96)
    assert epoch == 2
    assert await resolve_attempt(
        db,
        organisation_id=org,
        generation_key=key,
        epoch=1,
        usage=AttemptUsage(100, 0, 8, "engine"),
        outcome="lost",
        cause="worker_lost",
    )
    charge = await settle_call(db, tenant, task_id, winner=key)
    useful = round((100 * INPUT + 6 * OUTPUT) / 1_000_000, 9) + round(4 * OUTPUT / 1_000_000, 9)
    assert charge.billed_usd == useful
    assert (charge.prompt_tokens, charge.completion_tokens) == (100, 10)
    steps = await list_steps(db, org, task_id)
    lost, won = steps[0].calls
    assert (lost.outcome, lost.waste_cause) == ("lost", "worker_lost")
    assert (lost.uncached_input_tokens, lost.output_tokens, lost.wasted_output_tokens) == (
        100,
        8,
        2,
    )
    assert lost.wasted_uncached_input_tokens == 0
    assert (won.outcome, won.waste_cause) == ("succeeded", "resumed")
    assert (won.uncached_input_tokens, won.cached_input_tokens) == (10, 96)
    assert (won.wasted_uncached_input_tokens, won.wasted_cached_input_tokens) == (10, 96)
    assert (won.output_tokens, won.wasted_output_tokens) == (4, 0)
    assert charge.waste_usd == lost.waste_usd + won.waste_usd > 0
    assert steps[0].text == "abcdefhello world"
    await assert_conserved(db, org)


async def test_fallback_restart_and_failure_are_waste_with_their_cause(
    db: Database, tenant: Tenant
) -> None:
    org = tenant.organisation_id
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id)
    given_up = await stage(db, tenant, task_id, candidate=0)
    await generate(db, tenant, given_up, tokens=5)
    winner = await stage(db, tenant, task_id, candidate=1)
    begun = await begin_attempt(
        db, organisation_id=org, generation_key=winner, replica="a", temporal_attempt=1
    )
    await append_chunk(
        db, organisation_id=org, generation_key=winner, epoch=1, seq=0, token_ids=[1, 2], text="no"
    )
    fresh = await restart(
        db, organisation_id=org, generation_key=winner, epoch=begun.epoch, reason="cannot_resume"
    )
    assert (fresh.epoch, fresh.generated_ids, fresh.text, fresh.next_seq) == (2, [], "", 1)
    assert fresh.request_id == f"{winner}@2"
    await generate(db, tenant, winner, tokens=3)
    charge = await settle_call(db, tenant, task_id, winner=winner)
    assert charge.completion_tokens == 3
    step = (await list_steps(db, org, task_id))[0]
    assert step.text == "hello world"
    assert [(c.candidate, c.epoch, c.waste_cause) for c in step.calls] == [
        (0, 1, "fallback"),
        (1, 1, "restarted"),
        (1, 2, None),  # the attempt that could not go on: no tokens, so no waste
        (1, 3, None),
    ]
    failed = await file_task(db, tenant)
    await admit_call(db, tenant, failed)
    key = await stage(db, tenant, failed)
    await generate(db, tenant, key, tokens=5)
    charge = await settle_call(db, tenant, failed, outcome="failed")
    assert charge.billed_usd == 0
    assert charge.waste_usd == round((100 * INPUT + 5 * OUTPUT) / 1_000_000, 9)
    await assert_conserved(db, org)


async def test_what_exceeds_the_hold_is_overage_and_audited(server: Server, db: Database) -> None:
    tenant = make_tenant(server, organisation_cap=Decimal("0.000100"))
    org = tenant.organisation_id
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id, amount=Decimal("0.0001"))
    key = await stage(db, tenant, task_id)
    await generate(db, tenant, key, tokens=100)
    charge = await settle_call(db, tenant, task_id, winner=key)
    assert charge.billed_usd == round((100 * INPUT + 100 * OUTPUT) / 1_000_000, 9)
    assert charge.overage_usd == charge.billed_usd - Decimal("0.0001") > 0
    budget = (await budgets(db, org))["organisation"]
    assert (budget["spent_usd"], budget["overage_usd"]) == (Decimal("0.0001"), charge.overage_usd)
    audit = await db.run(org, "select action, subject from audit_log")
    assert audit == [{"action": "settle.overage", "subject": f"{task_id}:1"}]
    # Overage counts against the cap: nothing more is let through, not even for nothing.
    refusal = await admit_call(db, tenant, task_id, 2, amount=Decimal(0))
    assert isinstance(refusal, Refusal)
    await assert_conserved(db, org)


async def test_a_model_without_a_price_is_settled_and_audited(db: Database, tenant: Tenant) -> None:
    org = tenant.organisation_id
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id)
    key = await stage(db, tenant, task_id, model="unpriced-model")
    await generate(db, tenant, key)
    charge = await settle_call(db, tenant, task_id, winner=key)
    assert charge.billed_usd == 0
    assert [r["action"] for r in await db.run(org, "select action from audit_log")] == [
        "settle.unpriced"
    ]
    rows = await db.run(org, "select unpriced from spend_by_model where model = 'unpriced-model'")
    assert rows == [{"unpriced": 1}]


async def test_finishing_a_task_closes_its_open_calls(db: Database, tenant: Tenant) -> None:
    org = tenant.organisation_id
    task_id = await file_task(db, tenant, max_cost=Decimal("1"))
    for step in (1, 2, 3):
        await admit_call(db, tenant, task_id, step)
    key = await stage(db, tenant, task_id, 2)
    begun = await begin_attempt(
        db, organisation_id=org, generation_key=key, replica="a", temporal_attempt=1
    )
    charge = await settle_call(
        db, tenant, task_id, 1, outcome="cancelled", finish=TaskFinish("cancelled")
    )
    assert not charge.already_settled
    task = await get_task(db, org, task_id)
    assert task is not None
    assert task.status == "cancelled"
    assert [b["held_usd"] for b in (await budgets(db, org)).values()] == [0, 0, 0, 0]
    assert not await append_chunk(
        db,
        organisation_id=org,
        generation_key=key,
        epoch=begun.epoch,
        seq=0,
        token_ids=[1],
        text="late",
    )
    with pytest.raises(AlreadySettled):
        await begin_attempt(
            db, organisation_id=org, generation_key=key, replica="a", temporal_attempt=2
        )
    await assert_conserved(db, org)


async def test_what_was_never_admitted_cannot_begin_or_settle(db: Database, tenant: Tenant) -> None:
    task_id = await file_task(db, tenant)
    key = await stage(db, tenant, task_id)
    with pytest.raises(NotAdmitted):
        await begin_attempt(
            db,
            organisation_id=tenant.organisation_id,
            generation_key=key,
            replica="a",
            temporal_attempt=1,
        )
    with pytest.raises(NotAdmitted):
        await settle_call(db, tenant, task_id)


async def test_the_ledger_refuses_every_change_by_everybody(
    db: Database, admin_db: Database, tenant: Tenant
) -> None:
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id)
    key = await stage(db, tenant, task_id)
    await generate(db, tenant, key)
    await settle_call(db, tenant, task_id, winner=key)
    partition = (
        await admin_db.run_untenanted(
            "select tableoid::regclass::text as name from model_calls where task_id = %s",
            (task_id,),
        )
    )[0]["name"]
    for table in ("model_calls", partition, "audit_log"):
        for statement in (
            f"update {table} set organisation_id = organisation_id",
            f"delete from {table}",
            f"truncate {table}",
        ):
            with pytest.raises(pg.InsufficientPrivilege):
                await db.run(tenant.organisation_id, statement)
            with pytest.raises(pg.InsufficientPrivilege, match="append-only"):
                await admin_db.run(tenant.organisation_id, statement)
            with pytest.raises(pg.InsufficientPrivilege, match="append-only"):
                await admin_db.run_many(
                    tenant.organisation_id,
                    [("set local role overline_owner", ()), (statement, ())],
                )
    rows = await db.run(tenant.organisation_id, "select count(*) as n from model_calls")
    assert rows == [{"n": 1}]


async def test_a_cap_below_what_is_spent_stops_without_breaking(
    server: Server, db: Database, tenant: Tenant
) -> None:
    org = tenant.organisation_id
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id, amount=Decimal("0.5"))
    set_budget(server.admin_url, org, org, Decimal("0.1"))
    assert (await budgets(db, org))["organisation"]["cap_usd"] == Decimal("0.5")
    assert isinstance(await admit_call(db, tenant, task_id, 2), Refusal)
    # What the call gives back is not room for others: the cap comes down to what was wished.
    await settle_call(db, tenant, task_id, outcome="failed")
    assert (await budgets(db, org))["organisation"]["cap_usd"] == Decimal("0.1")
    assert isinstance(await admit_call(db, tenant, task_id, 2, Decimal("0.2")), Refusal)
    set_budget(server.admin_url, org, org, None)
    assert isinstance(await admit_call(db, tenant, task_id, 2), Admission)
    with pytest.raises(NotFound):
        set_budget(server.admin_url, org, task_id, Decimal(1))


async def test_filing_a_task_is_repeatable_and_refuses_what_cannot_be_paid(
    server: Server, db: Database
) -> None:
    tenant = make_tenant(server, team_cap=Decimal("0.01"))
    first = await file_task(db, tenant, key="once")

    async def again(digest: str) -> Any:
        return await submit_task(
            db,
            tenant.principal,
            task_id=UUID(int=1),
            idempotency_key="once",
            request_digest=digest,
            input={},
            user=None,
            tags={},
            route="default",
            worst_case_usd=Decimal("0.000001"),
            max_cost_usd=None,
        )

    same = await again("8da0e5d6a3a0a5a1" * 4)
    assert (same.task_id, same.created, same.conflict) == (first, False, True)
    stored = await db.run(tenant.organisation_id, "select request_digest from tasks")
    same = await again(stored[0]["request_digest"])
    assert (same.task_id, same.created, same.conflict) == (first, False, False)
    refusal = await submit_task(
        db,
        tenant.principal,
        task_id=UUID(int=2),
        idempotency_key=None,
        request_digest="x",
        input={},
        user=None,
        tags={},
        route="default",
        worst_case_usd=Decimal("0.02"),
        max_cost_usd=None,
    )
    assert isinstance(refusal, Refusal)
    assert (refusal.scope, refusal.needed_usd) == ("team", Decimal("0.02"))
    assert await get_task(db, tenant.organisation_id, UUID(int=2)) is None


async def test_a_cached_answer_costs_nothing_and_says_what_it_saved(
    db: Database, tenant: Tenant
) -> None:
    org = tenant.organisation_id
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id)
    key = await stage(db, tenant, task_id)
    await generate(db, tenant, key)
    first = await settle_call(db, tenant, task_id, winner=key, cache_write=CacheWrite("aa" * 32))
    entry = (await db.run(org, "select cache_entry_id from cache_entries"))[0]["cache_entry_id"]
    repeat = await file_task(db, tenant)
    await admit_call(db, tenant, repeat)
    charge = await settle_call(
        db, tenant, repeat, outcome="cached", cache_hit=entry, finish=TaskFinish("succeeded")
    )
    assert charge.billed_usd == charge.waste_usd == 0
    assert charge.saved_usd == first.billed_usd > 0
    task = await get_task(db, org, repeat)
    assert task is not None
    assert task.answer == "hello world"
    call = (await list_steps(db, org, repeat))[0].calls[0]
    assert (call.outcome, call.output_tokens, call.saved_usd) == ("cached", 0, first.billed_usd)
    await assert_conserved(db, org)


ACTIONS = st.lists(
    st.tuples(
        st.integers(0, 3),  # which task
        st.sampled_from(["admit", "succeed", "fail", "cancel", "finish", "repeat", "cap"]),
        st.decimals(0, "0.002", places=9),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS, caps=st.tuples(*[st.decimals("0.0005", "0.01", places=9)] * 3))
async def test_whatever_happens_in_whatever_order_no_cent_is_lost(
    server: Server,
    db: Database,
    actions: list[tuple[int, str, Decimal, int]],
    caps: tuple[Decimal, Decimal, Decimal],
) -> None:
    tenant = make_tenant(server, organisation_cap=caps[0], team_cap=caps[1], key_cap=caps[2])
    tasks = [await file_task(db, tenant, max_cost=Decimal("0.004")) for _ in range(4)]
    steps = [0, 0, 0, 0]
    open_calls: list[tuple[int, int]] = []
    for which, action, amount, tokens in actions:
        task_id = tasks[which]
        if action == "admit":
            answer = await admit_call(db, tenant, task_id, steps[which] + 1, amount)
            if isinstance(answer, Admission):
                steps[which] += 1
                open_calls.append((which, steps[which]))
        elif action == "finish":
            await finish_task(db, tenant.organisation_id, task_id, status="failed")
            open_calls = [call for call in open_calls if call[0] != which]
        elif action == "cap":
            # Of the task, or of one of those above it.
            org, owners = tenant.organisation_id, (tenant.key_id, tenant.team_id)
            if which == 0:
                await set_task_budget(db, org, task_id, actor="test", cap_usd=amount)
            else:
                set_budget(server.admin_url, org, (*owners, org)[which - 1], amount)
        elif action == "repeat" and steps[which]:
            await admit_call(db, tenant, task_id, steps[which], amount)
        elif open_calls:
            owner, step = open_calls.pop()
            winner = None
            if action == "succeed":
                winner = await stage(db, tenant, tasks[owner], step)
                await generate(db, tenant, winner, tokens=tokens)
            outcome = {"succeed": "succeeded", "cancel": "cancelled"}.get(action, "failed")
            for _ in range(2):
                await settle_call(db, tenant, tasks[owner], step, winner=winner, outcome=outcome)
        await assert_conserved(db, tenant.organisation_id)


async def test_many_keys_of_one_team_share_its_budget(server: Server, db: Database) -> None:
    tenant = make_tenant(server)
    team_id = create_team(
        server.admin_url, tenant.organisation_id, "small", cap_usd=Decimal("0.05")
    )
    keys = [
        create_key(server.admin_url, tenant.organisation_id, team_id, f"key {n}") for n in range(4)
    ]
    members = [Tenant(k.organisation_id, k.team_id, k.key_id, k.token) for k in keys]
    tasks = [(m, await file_task(db, m)) for m in members for _ in range(4)]
    answers = await asyncio.gather(*(admit_call(db, m, task) for m, task in tasks))
    assert sum(isinstance(a, Admission) for a in answers) == 5
    assert {a.scope for a in answers if isinstance(a, Refusal)} == {"team"}
    await assert_conserved(db, tenant.organisation_id)


def test_prices_of_the_tests_need_nine_decimals() -> None:
    assert all(price.as_tuple().exponent == -6 for price in (INPUT, CACHED, OUTPUT))
