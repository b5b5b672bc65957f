"""One call through the store: admit, stage, begin, append, finish, settle, read back."""

from __future__ import annotations

from decimal import Decimal

from store.database import Database
from store.events import read_events
from store.money import Admission, CacheWrite, Settlement, TaskFinish, settle
from store.tasks import get_task, list_steps, load_transcript
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
from tests.integration.store.conftest import Tenant


async def test_a_call_from_admission_to_bill(
    db: Database, admin_db: Database, tenant: Tenant
) -> None:
    await sync_test_catalogue(admin_db)
    task_id = await file_task(db, tenant, max_cost=Decimal("1"))
    before = db.round_trips
    assert isinstance(await admit_call(db, tenant, task_id), Admission)
    key = await stage(db, tenant, task_id)
    await generate(db, tenant, key, tokens=10, prompt=100, cached=40)
    settlement = Settlement(
        tenant.organisation_id,
        task_id,
        1,
        f"{task_id}:1",
        "succeeded",
        generation_key=key,
        decision={"model": "test-model", "reason": "first"},
        text="hello world",
        finish_reason="stop",
        cache_write=CacheWrite("ab" * 32),
        finish=TaskFinish("succeeded", "hello world"),
    )
    charge = await settle(db, settlement)
    assert db.round_trips - before == 6

    expected = round((60 * INPUT + 40 * CACHED + 10 * OUTPUT) / 1_000_000, 9)
    assert charge.billed_usd == expected
    assert charge.waste_usd == charge.overage_usd == 0
    assert (charge.prompt_tokens, charge.completion_tokens, charge.cached_tokens) == (100, 10, 40)
    assert not charge.already_settled
    again = await settle(db, settlement)
    assert again.already_settled
    assert again.billed_usd == expected

    task = await get_task(db, tenant.organisation_id, task_id)
    assert task is not None
    assert (task.status, task.answer, task.billed_usd) == ("succeeded", "hello world", expected)
    steps = await list_steps(db, tenant.organisation_id, task_id)
    assert [s.status for s in steps] == ["succeeded"]
    assert [c.billed_usd for c in steps[0].calls] == [expected]
    transcript = await load_transcript(db, tenant.organisation_id, task_id)
    assert [s.text for s in transcript.steps] == ["hello world"]

    events = await read_events(db, tenant.organisation_id, task_id)
    assert [e.type for e in events] == [
        "task.accepted",
        "step.started",
        "text",
        "text",
        "step.completed",
        "task.succeeded",
    ]
    assert [e.seq for e in events] == [1, 2, 3, 4, 5, 6]
    assert "".join(e.payload["text"] for e in events if e.type == "text") == "hello world"
    assert events[4].payload["cost"]["billed_usd"] == str(expected)

    budgets = await db.run(
        tenant.organisation_id,
        "select scope, held_usd, spent_usd from budgets where organisation_id = %s order by depth",
        (tenant.organisation_id,),
    )
    assert [(b["scope"], b["held_usd"], b["spent_usd"]) for b in budgets] == [
        (scope, 0, expected) for scope in ("task", "key", "team", "organisation")
    ]
