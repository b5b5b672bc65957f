"""Drives model calls through the store the way the activities do; the tests' own vocabulary."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

from uuid_utils.compat import uuid7

from store.catalogue import Deployment, Model, Price, Route, sync_catalogue
from store.database import Database
from store.journal import (
    AttemptTimings,
    AttemptUsage,
    append_chunk,
    begin_attempt,
    finish_attempt,
    stage_prompt,
)
from store.money import Admission, admit
from store.refusals import Refusal
from store.tasks import submit_task
from tests.integration.store.conftest import Tenant

MODEL = "test-model"
# USD per million tokens, chosen so that products need all nine decimals.
INPUT, CACHED, OUTPUT = Decimal("1.234567"), Decimal("0.123456"), Decimal("7.654321")


async def sync_test_catalogue(admin_db: Database) -> str:
    """One model with a price, and one without."""
    models = [
        Model(MODEL, "1", 2048, 512, ("chat", "json_schema"), "tok-1", "Apache-2.0"),
        Model("unpriced-model", "1", 2048, 512, ("chat",), "tok-1", "Apache-2.0"),
    ]
    return await sync_catalogue(
        admin_db,
        models,
        [Deployment("d1", MODEL, "scripted", ("127.0.0.1:1",), "scripted")],
        [Price(MODEL, INPUT, CACHED, OUTPUT, datetime(2020, 1, 1, tzinfo=UTC))],
        [Route("default", "first", ({"model": MODEL},))],
    )


async def file_task(
    db: Database, tenant: Tenant, *, max_cost: Decimal | None = None, key: str | None = None
) -> UUID:
    """Files a task with a small request."""
    task_id = uuid7()
    filed = await submit_task(
        db,
        tenant.principal,
        task_id=task_id,
        idempotency_key=key,
        request_digest=hashlib.sha256(b"request").hexdigest(),
        input={"messages": [{"role": "user", "content": "hello"}]},
        user="ada",
        tags={"project": "x"},
        route="default",
        worst_case_usd=Decimal("0.000001"),
        max_cost_usd=max_cost,
    )
    assert not isinstance(filed, Refusal)
    assert filed.created
    return filed.task_id


async def admit_call(
    db: Database, tenant: Tenant, task_id: UUID, step: int = 1, amount: Decimal = Decimal("0.01")
) -> Admission | Refusal:
    """Admits one call of a task."""
    return await admit(
        db,
        organisation_id=tenant.organisation_id,
        team_id=tenant.team_id,
        key_id=tenant.key_id,
        task_id=task_id,
        step=step,
        call_key=f"{task_id}:{step}",
        amount_usd=amount,
    )


async def stage(
    db: Database,
    tenant: Tenant,
    task_id: UUID,
    step: int = 1,
    *,
    candidate: int = 0,
    prompt: int = 100,
    model: str = MODEL,
) -> str:
    """Stages a prompt of so many tokens and returns the generation key."""
    await stage_prompt(
        db,
        organisation_id=tenant.organisation_id,
        workflow_id=f"task-{task_id}",
        task_id=task_id,
        step=step,
        call_key=f"{task_id}:{step}",
        candidate=candidate,
        channel="answer",
        model=model,
        model_version="1",
        tokenizer_version="tok-1",
        deployment="d1",
        prompt_ids=list(range(prompt)),
    )
    return f"{task_id}:{step}#{candidate}"


async def generate(
    db: Database,
    tenant: Tenant,
    key: str,
    *,
    tokens: int = 10,
    prompt: int = 100,
    cached: int = 0,
    extra: int = 0,
) -> int:
    """Runs one attempt to its end in two chunks; `extra` tokens are counted, not journaled."""
    begun = await begin_attempt(
        db,
        organisation_id=tenant.organisation_id,
        generation_key=key,
        replica="127.0.0.1:1",
        temporal_attempt=1,
    )
    assert begun.finished is None
    assert await append_chunk(
        db,
        organisation_id=tenant.organisation_id,
        generation_key=key,
        epoch=begun.epoch,
        seq=begun.next_seq,
        token_ids=list(range(tokens - 1)),
        text="hello ",
    )
    assert await finish_attempt(
        db,
        organisation_id=tenant.organisation_id,
        generation_key=key,
        epoch=begun.epoch,
        seq=begun.next_seq + 1,
        token_ids=[7],
        text="world",
        usage=AttemptUsage(prompt, cached, tokens + extra, "engine"),
        finish_reason="stop",
        timings=AttemptTimings(1.0, 2.0, 3.0),
    )
    return begun.epoch
