"""Upstreams on file: requests as text, tokens by their own word or by estimate, prices of names."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.upstream.estimate import TextCount
from store.catalogue import Deployment, Model, Price, load_catalogue, sync_catalogue
from store.database import Database
from store.errors import NotFound
from store.journal import (
    AttemptUsage,
    StagedRequest,
    append_chunk,
    begin_attempt,
    finish_attempt,
    restart,
    stage_request,
    staged_request,
    text_of_attempt,
)
from store.money import Charge
from tests.integration.store.calls import (
    admit_call,
    file_task,
    stage,
    sync_test_catalogue,
)
from tests.integration.store.conftest import Tenant
from tests.integration.store.test_money import settle_call

REQUEST = StagedRequest('{"messages": [], "tools": []}', 30)
DEPLOYMENT = Deployment(
    "up*-d", "up*", "openai", ("http://u/v1",), "", secret="k", options={"idle_s": 5}
)


@pytest.fixture(autouse=True)
async def _catalogue(admin_db: Database) -> None:
    await sync_test_catalogue(admin_db)
    since = datetime(2020, 1, 1, tzinfo=UTC)
    await sync_catalogue(
        admin_db,
        [Model("up*", "1", 4096, 512, ("chat", "tools"), "", "")],
        [DEPLOYMENT, Deployment("d1", "test-model", "scripted", ("127.0.0.1:1",), "scripted")],
        [Price("up*", Decimal(1), Decimal("0.5"), Decimal(2), since, Decimal(4))],
        [],
    )


async def begun(db: Database, tenant: Tenant) -> tuple[object, str]:
    """A staged request, and its first attempt."""
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id)
    key = f"{task_id}:1#0"
    await stage_request(
        db,
        organisation_id=tenant.organisation_id,
        generation_key=key,
        workflow_id=f"task-{task_id}",
        task_id=task_id,
        step=1,
        call_key=f"{task_id}:1",
        candidate=0,
        channel="answer",
        model="up-one",
        model_version="1",
        deployment=DEPLOYMENT.id,
        request=REQUEST,
    )
    await attempt(db, tenant, key)
    return task_id, key


async def attempt(db: Database, tenant: Tenant, key: str) -> int:
    opened = await begin_attempt(
        db,
        organisation_id=tenant.organisation_id,
        generation_key=key,
        replica="http://u/v1",
        temporal_attempt=1,
    )
    return opened.epoch


async def write(db: Database, tenant: Tenant, key: str, text: str, seq: int = 0) -> None:
    assert await append_chunk(
        db,
        organisation_id=tenant.organisation_id,
        generation_key=key,
        epoch=1,
        seq=seq,
        token_ids=[],
        text=text,
    )


async def end(
    db: Database, tenant: Tenant, key: str, usage: AttemptUsage, *, epoch: int = 1, seq: int = 1
) -> None:
    assert await finish_attempt(
        db,
        organisation_id=tenant.organisation_id,
        generation_key=key,
        epoch=epoch,
        seq=seq,
        token_ids=[],
        text="",
        usage=usage,
        finish_reason="stop",
        outcome="cancelled" if usage.source == "estimate" else "succeeded",
    )


async def ledger(admin_db: Database, task_id: object) -> list[dict[str, object]]:
    return await admin_db.run_untenanted(
        "select * from model_calls where task_id = %s order by epoch", (task_id,)
    )


async def test_a_catalogue_with_upstreams_is_read_as_it_was_written(admin_db: Database) -> None:
    known = await load_catalogue(admin_db)
    assert known.deployments_of("up-one") == [DEPLOYMENT]
    price = known.price_of("up-one")
    assert price is not None
    assert price.reasoning_usd_per_million == 4


async def test_a_request_is_kept_until_an_attempt_has_begun(db: Database, tenant: Tenant) -> None:
    task_id, key = await begun(db, tenant)
    assert await staged_request(db, tenant.organisation_id, key) == REQUEST
    with pytest.raises(NotFound):
        await staged_request(db, tenant.organisation_id, "other")
    await admit_call(db, tenant, task_id, 2)  # type: ignore[arg-type]
    ids = await stage(db, tenant, task_id, 2)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        await staged_request(db, tenant.organisation_id, ids)


async def test_the_upstreams_own_count_is_billed_and_thoughts_have_their_price(
    db: Database, admin_db: Database, tenant: Tenant
) -> None:
    task_id, key = await begun(db, tenant)
    # The journal's estimate is 25: more than the upstream says, and it does not matter.
    await write(db, tenant, key, "x" * 100)
    await end(db, tenant, key, AttemptUsage(40, 10, 20, "upstream", 5))
    charge: Charge = await settle_call(db, tenant, task_id, winner=key)  # type: ignore[arg-type]
    assert (charge.prompt_tokens, charge.cached_tokens, charge.completion_tokens) == (40, 10, 20)
    # 30 at $1, 10 at $0.50, 15 at $2 and 5 thoughts at $4 a million.
    assert charge.billed_usd == Decimal("0.000085")
    (row,) = await ledger(admin_db, task_id)
    assert (row["model"], row["usage_source"]) == ("up-one", "upstream")
    assert (row["reasoning_tokens"], row["reasoning_usd_per_million"]) == (5, 4)


async def test_a_cancelled_answer_is_billed_by_the_estimate_of_what_was_shown(
    db: Database, admin_db: Database, tenant: Tenant
) -> None:
    task_id, key = await begun(db, tenant)
    await write(db, tenant, key, "x" * 40)
    await end(db, tenant, key, AttemptUsage(30, 0, 12, "estimate"))
    charge = await settle_call(
        db,
        tenant,
        task_id,
        winner=key,
        outcome="cancelled",  # type: ignore[arg-type]
    )
    # 30 read and 10 shown; two more came and were seen by nobody.
    assert charge.billed_usd == Decimal("0.00005")
    assert charge.waste_usd == Decimal("0.000004")
    (row,) = await ledger(admin_db, task_id)
    assert (row["usage_source"], row["wasted_output_tokens"]) == ("estimate", 2)


async def test_an_attempt_nobody_resolved_is_counted_by_its_text_and_marked(
    db: Database, admin_db: Database, tenant: Tenant
) -> None:
    task_id, key = await begun(db, tenant)
    await write(db, tenant, key, "x" * 40)
    assert await text_of_attempt(db, tenant.organisation_id, key, 1) == "x" * 40
    assert await attempt(db, tenant, key) == 2
    fresh = await restart(
        db,
        organisation_id=tenant.organisation_id,
        generation_key=key,
        epoch=2,
        reason="cannot_resume",
    )
    assert (fresh.epoch, fresh.text) == (3, "")
    await end(db, tenant, key, AttemptUsage(30, 0, 10, "upstream"), epoch=3)
    await settle_call(db, tenant, task_id, winner=key)  # type: ignore[arg-type]
    lost, given_up, good = await ledger(admin_db, task_id)
    assert (lost["uncached_input_tokens"], lost["output_tokens"]) == (30, 10)
    assert (lost["usage_source"], lost["waste_cause"]) == ("estimate", "restarted")
    assert (lost["billed_usd"], lost["waste_usd"]) == (0, Decimal("0.00005"))
    assert given_up["cost_usd"] == 0
    assert (good["outcome"], good["billed_usd"]) == ("succeeded", Decimal("0.00005"))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=80))
async def test_one_rule_of_thumb_in_python_and_in_sql(admin_db: Database, text: str) -> None:
    count = TextCount()
    count.add(text)
    (row,) = await admin_db.run_untenanted("select likely_tokens(%s) as n", (text,))
    assert row["n"] == count.tokens
