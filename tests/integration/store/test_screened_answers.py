"""Answers of screened tasks: what is kept of them, who is asked about them, how they end theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from activities.judging import Judging, Payer
from safety.findings import Verdict
from safety.policy import Policy, Rule
from store import approvals
from store.database import Database
from store.events import read_events
from store.identity import Origin, Principal, authenticate
from store.journal import append_chunk, begin_attempt, finish_attempt, release_text
from store.messages import send_message
from store.money import Settlement, conclude, settle
from store.tasks import get_task, list_steps
from tests.integration.store.calls import (
    admit_call,
    file_task,
    generate,
    stage,
    sync_test_catalogue,
)
from tests.integration.store.conftest import Tenant
from tests.integration.store.test_journal import USAGE


@pytest.fixture(autouse=True)
async def _catalogue(admin_db: Database) -> None:
    await sync_test_catalogue(admin_db)


async def settled(db: Database, tenant: Tenant, task_id: UUID, key: str) -> None:
    await settle(
        db,
        Settlement(
            tenant.organisation_id, task_id, 1, f"{task_id}:1", "succeeded", generation_key=key
        ),
    )


async def held_back(db: Database, tenant: Tenant) -> tuple[UUID, str]:
    """A task whose answer waits for a person, and is paid for."""
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id)
    key = await stage(db, tenant, task_id)
    where: dict[str, Any] = {"organisation_id": tenant.organisation_id, "generation_key": key}
    begun = await begin_attempt(db, **where, replica="127.0.0.1:1", temporal_attempt=1)
    at = {"epoch": begun.epoch, "token_ids": [1, 2], "text": ""}
    assert await append_chunk(db, **where, seq=0, **at)
    assert await finish_attempt(db, **where, seq=1, **at, usage=USAGE, finish_reason="stop")
    await settled(db, tenant, task_id, key)
    return task_id, key


async def test_token_ids_of_a_screened_task_are_forgotten_when_they_are_paid_for(
    db: Database, admin_db: Database, tenant: Tenant
) -> None:
    for screened in ("safety", "policy", None):
        task_id = await file_task(db, tenant)
        await admit_call(db, tenant, task_id)
        key = await stage(db, tenant, task_id)
        await generate(db, tenant, key, tokens=4)
        if screened is not None:
            await admin_db.run_untenanted(
                "update tasks set input = input || jsonb_build_object(%s::text, 1)"
                " where task_id = %s",
                (screened, task_id),
            )
        await settled(db, tenant, task_id, key)
        rows = await db.run(
            tenant.organisation_id,
            "select token_ids, text from token_chunks where step_key = %s order by seq",
            (key,),
        )
        ids = [row["token_ids"] for row in rows]
        assert ids == ([[0, 1, 2], [7]] if screened is None else [[0, 0, 0], [0]])
        assert [row["text"] for row in rows] == ["hello ", "world"]


async def test_an_answer_that_was_allowed_ends_the_task_that_paid_for_it_before(
    db: Database, tenant: Tenant
) -> None:
    organisation = tenant.organisation_id
    task_id, key = await held_back(db, tenant)
    task = await get_task(db, organisation, task_id)
    assert task is not None
    assert (task.status, task.billed_usd > 0) == ("running", True)
    for _ in range(2):
        await release_text(db, organisation, key, "It is told.")
        ended = await conclude(
            db, organisation_id=organisation, task_id=task_id, step=1, status="succeeded"
        )
        assert ended is False
    task = await get_task(db, organisation, task_id)
    assert task is not None
    assert (task.status, task.answer) == ("succeeded", "It is told.")
    assert [step.text for step in await list_steps(db, organisation, task_id)] == ["It is told."]
    events = [event.type for event in await read_events(db, organisation, task_id)]
    assert events[2:] == ["text", "text", "step.completed", "text", "task.succeeded"]


async def test_an_answer_that_was_allowed_is_one_of_a_conversation_that_went_on(
    db: Database, tenant: Tenant
) -> None:
    organisation = tenant.organisation_id
    task_id, key = await held_back(db, tenant)
    await send_message(
        db, organisation, tenant.key_id, task_id, content="And now?", idempotency_key=None
    )
    await release_text(db, organisation, key, "It is told.")
    for _ in range(2):
        goes_on = await conclude(
            db,
            organisation_id=organisation,
            task_id=task_id,
            step=1,
            status="succeeded",
            unless_told=True,
        )
        assert goes_on is True
    task = await get_task(db, organisation, task_id)
    assert task is not None
    assert task.status == "running"


async def test_people_are_asked_about_an_answer_by_the_blob_it_is_in(
    db: Database, tenant: Tenant
) -> None:
    task_id, _ = await held_back(db, tenant)
    held, raw = "ab" * 32, "cd" * 32
    # A model may say what it likes of the arguments of a tool.
    for call_id, answer in ((f"{task_id}:1:answer", held), (f"{task_id}:1:svc.x:0123", raw)):
        await approvals.request_approval(
            db,
            tenant.organisation_id,
            task_id,
            step=1,
            call_id=call_id,
            tool="answer",
            arguments={"rule": "bird", "answer": answer},
            arguments_digest="0" * 64,
        )
    asked = await approvals.about_answer(db, tenant.organisation_id, task_id, held)
    assert asked is not None
    assert asked.call_id == f"{task_id}:1:answer"
    assert await approvals.about_answer(db, tenant.organisation_id, task_id, raw) is None


class Asked:
    """A judge that says from where it was asked."""

    def __init__(self) -> None:
        self.origins: list[Origin] = []

    async def judge(self, rule: Rule, texts: Sequence[str], payer: Payer) -> list[bool]:
        self.origins.append(payer.origin)
        return [False for _ in texts]


async def test_a_task_of_a_restricted_key_is_judged(db: Database, tenant: Tenant) -> None:
    task_id = await file_task(db, tenant)
    await db.run(
        tenant.organisation_id,
        "update api_keys set addresses = '{10.1.0.0/16}', endpoints = '{/v1/maps}'"
        " where key_id = %s",
        (tenant.key_id,),
    )
    rule = Rule(id="judged", kind="moderation", model="test-model", on=("input",), action="block")
    policy = Policy(rules=(rule,))
    judging = Judging(db)
    judging.judge = asked = Asked()
    verdict = Verdict(("text",), (), "allow", "allow", "enforce", (rule,))
    await judging.of(tenant.organisation_id, task_id, policy, "input", verdict)
    (origin,) = asked.origins
    assert isinstance(await authenticate(db, tenant.token, origin), Principal)
