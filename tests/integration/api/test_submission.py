"""Submitting: what starts a workflow, what never reaches Temporal, and what survives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import httpx2
import psycopg
import pytest
from pydantic import SecretStr
from temporalio.client import Client
from uuid_utils.compat import uuid7

from api.orchestrator import Orchestrator
from deploy.local.ports import free_port
from settings import Settings
from store import tasks
from store.database import Database
from tests.integration.api.conftest import MODEL, Tenant, make_tenant, serving
from workflows.contracts import TaskInput
from workflows.sealing import Sealer

HELLO = {"input": "[[say text='hello']] canary-4711"}


async def _workflows(temporal: Client, tenant: Tenant) -> int:
    """Workflows of a tenant that Temporal knows, once its index has caught up."""
    await asyncio.sleep(1.5)
    query = f"OverlineOrganisation = '{tenant.organisation_id}'"
    return (await temporal.count_workflows(query)).count


async def test_a_task_is_accepted_and_its_workflow_started(
    api: httpx2.AsyncClient, tenant: Tenant, temporal: Client
) -> None:
    response = await api.post("/v1/tasks", json=HELLO, headers=tenant.headers)
    assert response.status_code == 202
    accepted = response.json()
    assert response.headers["location"] == f"/v1/tasks/{accepted['id']}"
    assert accepted["links"]["web_ui"].endswith(f"/workflows/task-{accepted['id']}")
    assert not accepted["replayed"]

    description = await temporal.get_workflow_handle(f"task-{accepted['id']}").describe()
    assert description.workflow_type == "AgentTask"
    assert "characters" in (await description.static_summary() or "")
    history = await temporal.get_workflow_handle(f"task-{accepted['id']}").fetch_history()
    assert "canary-4711" not in history.to_json()
    started = history.events[0].workflow_execution_started_event_attributes
    payload = started.input.payloads[0]
    assert payload.metadata["encoding"] == b"binary/overline-aes256gcm"

    task = (await api.get(f"/v1/tasks/{accepted['id']}", headers=tenant.headers)).json()
    assert task["status"] == "accepted"
    assert task["preview"] == HELLO["input"]
    assert task["cost_usd"] == "0.000000000" or Decimal(task["cost_usd"]) == 0


async def test_an_idempotency_key_gives_the_first_task_again(
    api: httpx2.AsyncClient, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = tenant.headers | {"Idempotency-Key": "once"}
    answers = await asyncio.gather(
        *(api.post("/v1/tasks", json=HELLO, headers=headers) for _ in range(8))
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum(not answer.json()["replayed"] for answer in answers) == 1

    # The same request in other words is the same request; another one is a conflict.
    same = await api.post(
        "/v1/tasks",
        content=json.dumps({"route": "default", **HELLO}),
        headers=headers | {"Content-Type": "application/json"},
    )
    assert same.json()["replayed"]
    other = await api.post("/v1/tasks", json={"input": "other"}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "OVL-1005")

    # So is the first one of a version that filed the digest of a request without a key.
    headers = tenant.headers | {"Idempotency-Key": "before"}
    with monkeypatch.context() as before:
        before.setattr(Sealer, "keyed", lambda self, digest: digest)
        first = await api.post("/v1/tasks", json=HELLO, headers=headers)
    again = await api.post("/v1/tasks", json=HELLO, headers=headers)
    assert again.json() == {**first.json(), "replayed": True}
    other = await api.post("/v1/tasks", json={"input": "other"}, headers=headers)
    assert other.status_code == 409


BAD: list[tuple[Any, int, str | None]] = [
    (b"{", 400, ""),
    (b'"hello"', 422, ""),
    ({}, 422, ""),
    ({"input": ""}, 422, "/input"),
    ({"input": "  \n\t "}, 422, "/input"),
    ({"input": 5}, 422, "/input"),
    ({"input": "a\u0000b"}, 422, "/input"),
    (rb'{"input": "a\udfff"}', 422, "/input"),
    ({"input": "x" * 1_000_001}, 422, "/input"),
    ({"input": "x" * 10_000_000}, 413, ""),
    ({"input": "a", "colour": "red"}, 422, "/colour"),
    ({"input": "a", "sampling": {"max_tokens": "12"}}, 422, "/sampling/max_tokens"),
    ({"input": "a", "sampling": {"min_tokens": 9, "max_tokens": 3}}, 422, "/sampling"),
    ({"input": "a", "tools": [{"name": "shell"}]}, 422, "/tools/0/name"),
    ({"messages": [{"role": "assistant", "content": "a"}]}, 422, ""),
    ({"messages": [{"role": "user", "content": " "}]}, 422, "/messages/0/content"),
    ({"input": "a", "route": "no-such"}, 404, None),
    ({"input": "a", "model": "no-such"}, 404, None),
    ({"input": "a", "collections": ["no-such"]}, 404, None),
]


@pytest.mark.parametrize(("body", "status", "pointer"), BAD, ids=lambda value: str(value)[:40])
async def test_bad_input_is_refused_with_its_place(
    api: httpx2.AsyncClient, tenant: Tenant, body: Any, status: int, pointer: str | None
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await api.post(
        "/v1/tasks",
        content=content,
        headers=tenant.headers | {"Content-Type": "application/json"},
    )
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["request_id"] == response.headers["x-request-id"]
    if pointer is not None:
        assert pointer in [error["pointer"] for error in problem["errors"]]


async def test_unknown_names_come_with_the_known_ones(
    api: httpx2.AsyncClient, tenant: Tenant, other_tenant: Tenant
) -> None:
    for owner, name in ((tenant, "mine"), (other_tenant, "theirs")):
        made = await api.post("/v1/collections", json={"name": name}, headers=owner.headers)
        assert made.status_code == 201
    known = {}
    for field, value in (("route", "x"), ("model", "x"), ("collections", ["theirs"])):
        response = await api.post(
            "/v1/tasks", json={"input": "a", field: value}, headers=tenant.headers
        )
        assert response.status_code == 404
        known[field] = response.json()["known"]
    assert known == {"route": ["default"], "model": [MODEL], "collections": ["mine"]}


async def test_nothing_that_is_refused_reaches_temporal(
    api: httpx2.AsyncClient, tenant: Tenant, temporal: Client
) -> None:
    for body, _, _ in BAD:
        await api.post(
            "/v1/tasks",
            content=body if isinstance(body, bytes) else json.dumps(body).encode(),
            headers=tenant.headers | {"Content-Type": "application/json"},
        )
    page = (await api.get("/v1/tasks", headers=tenant.headers)).json()
    assert page["tasks"] == []
    assert await _workflows(temporal, tenant) == 0


@pytest.mark.parametrize("scope", ["task", "organisation"])
async def test_a_budget_too_small_is_a_402_with_the_numbers(
    api: httpx2.AsyncClient, admin_url: str, temporal: Client, scope: str
) -> None:
    cap = Decimal("0.000001")
    tenant = make_tenant(admin_url, cap_usd=cap if scope == "organisation" else None)
    limits = {"max_cost_usd": str(cap)} if scope == "task" else {}
    response = await api.post("/v1/tasks", json=HELLO | {"limits": limits}, headers=tenant.headers)
    problem = response.json()
    assert (response.status_code, problem["code"]) == (402, "OVL-3001")
    assert problem["scope"] == scope
    assert Decimal(problem["limit_usd"]) == cap
    assert Decimal(problem["spent_usd"]) == Decimal(problem["held_usd"]) == 0
    # The whole window of the only model: 256 tokens of answer, the rest prompt.
    assert Decimal(problem["needed_usd"]) == (Decimal(4096 - 256) + 256 * 2) / 1_000_000
    assert await _workflows(temporal, tenant) == 0


async def test_temporal_down_is_a_503_that_leaves_nothing_behind(
    settings: Settings, tenant: Tenant
) -> None:
    away = settings.model_copy(update={"temporal_address": f"127.0.0.1:{free_port()}"})
    async with serving(away, ready=False) as client:
        await _until(client, "triton", "ready")
        headers = tenant.headers | {"Idempotency-Key": "again"}
        response = await client.post("/v1/tasks", json=HELLO, headers=headers)
        assert (response.status_code, response.json()["part"]) == (503, "temporal")
        assert int(response.headers["retry-after"]) > 0
        page = (await client.get("/v1/tasks", headers=tenant.headers)).json()
        assert page["tasks"] == []
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["part"]) == (503, "temporal")
        assert (await client.get("/healthz")).status_code == 200
    # The idempotency key is free again: the retry is a first request.
    async with serving(settings) as client:
        retried = await client.post("/v1/tasks", json=HELLO, headers=headers)
        assert (retried.status_code, retried.json()["replayed"]) == (202, False)


@pytest.fixture
def nowhere(admin_url: str, catalogue: None) -> Iterator[None]:
    """Every model is deployed where nobody listens."""
    with psycopg.connect(admin_url, dbname="overline", autocommit=True) as admin:
        before = admin.execute("select deployment, urls from deployments").fetchall()
        admin.execute("update deployments set urls = %s", ([f"127.0.0.1:{free_port()}"],))
        yield
        for deployment, urls in before:
            admin.execute(
                "update deployments set urls = %s where deployment = %s", (urls, deployment)
            )


async def test_triton_down_is_a_503_that_names_it(
    settings: Settings, tenant: Tenant, nowhere: None
) -> None:
    async with serving(settings, ready=False) as client:
        await _until(client, "database", "ready")
        response = await client.post("/v1/tasks", json=HELLO, headers=tenant.headers)
        assert (response.status_code, response.json()["part"]) == (503, "triton")
        # What needs no model goes on.
        assert (await client.get("/v1/tasks", headers=tenant.headers)).status_code == 200


async def test_the_database_down_is_a_503_that_names_it(settings: Settings, tenant: Tenant) -> None:
    url = SecretStr(f"postgresql://overline_app@127.0.0.1:{free_port()}/overline")
    async with serving(settings.model_copy(update={"database_url": url}), ready=False) as client:
        for request in (
            client.post("/v1/tasks", json=HELLO, headers=tenant.headers),
            client.get("/v1/tasks", headers=tenant.headers),
            client.get(f"/v1/tasks/{uuid7()}/events", headers=tenant.headers),
        ):
            response = await request
            assert (response.status_code, response.json()["part"]) == (503, "database")
            assert int(response.headers["retry-after"]) > 0


async def test_a_task_left_behind_is_started_by_the_sweeper(
    api: httpx2.AsyncClient, db: Database, tenant: Tenant, temporal: Client
) -> None:
    """As if the process had died between accepting the task and starting its workflow."""
    task_id = uuid7()
    await db.run(
        tenant.organisation_id,
        "insert into tasks (organisation_id, task_id, team_id, key_id, workflow_id,"
        " request_digest, route, input, worst_case_usd, created_at) values"
        " (%s, %s, %s, %s, %s, 'd', 'default', %s, 0, now() - interval '1 minute')",
        (
            tenant.organisation_id,
            task_id,
            tenant.team_id,
            tenant.key_id,
            f"task-{task_id}",
            json.dumps({"input": "left behind"}),
        ),
    )
    handle = temporal.get_workflow_handle(f"task-{task_id}")
    async with asyncio.timeout(20):
        while True:
            record = await tasks.get_task(db, tenant.organisation_id, task_id)
            assert record is not None
            if record.run_id is not None:
                break
            await asyncio.sleep(0.2)
    description = await handle.describe()
    assert description.run_id == record.run_id
    task = await _input_of(handle)
    assert task.tenant.key_id == tenant.key_id
    assert task.prompt_chars == len("left behind")


async def _input_of(handle: Any) -> TaskInput:
    history = await handle.fetch_history()
    payloads = history.events[0].workflow_execution_started_event_attributes.input.payloads
    converter = handle._client.data_converter
    (task,) = await converter.decode(payloads, [TaskInput])
    assert isinstance(task, TaskInput)
    return task


async def test_cancel_reaches_the_workflow_and_is_no_error_twice(
    api: httpx2.AsyncClient, tenant: Tenant, temporal: Client, db: Database
) -> None:
    accepted = (await api.post("/v1/tasks", json=HELLO, headers=tenant.headers)).json()
    path = f"/v1/tasks/{accepted['id']}/cancel"
    for _ in range(2):
        answer = (await api.post(path, headers=tenant.headers)).json()
        assert answer["requested"] is True
    history = await temporal.get_workflow_handle(f"task-{accepted['id']}").fetch_history()
    assert any(
        event.HasField("workflow_execution_cancel_requested_event_attributes")
        for event in history.events
    )
    await tasks.finish_task(db, tenant.organisation_id, accepted["id"], status="cancelled")
    answer = (await api.post(path, headers=tenant.headers)).json()
    assert (answer["requested"], answer["status"]) == (False, "cancelled")


async def test_a_workflow_is_not_started_twice(
    api: httpx2.AsyncClient, tenant: Tenant, temporal: Client, settings: Settings
) -> None:
    """As a sweeper does that meets a task which was started and not marked."""
    accepted = (await api.post("/v1/tasks", json=HELLO, headers=tenant.headers)).json()
    handle = temporal.get_workflow_handle(f"task-{accepted['id']}")
    first = (await handle.describe()).run_id
    task = await _input_of(handle)
    for _ in range(2):
        assert await Orchestrator(temporal, settings).start_task(task, headline="again") == first
        if (await handle.describe()).close_time is None:
            await handle.terminate()


async def _until(client: httpx2.AsyncClient, part: str, state: str) -> None:
    async with asyncio.timeout(15):
        while True:
            answer = (await client.get("/readyz")).json()
            if answer["parts"][part] == state:
                return
            await asyncio.sleep(0.1)
