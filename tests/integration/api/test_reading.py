"""Lists, steps, spend and collections as callers read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx2
import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from store.database import Database
from store.retrieval import get_document
from tests.integration.api.conftest import MODEL, Tenant
from tests.integration.api.played import PlayedTask


async def test_a_finished_task_shows_its_answer_steps_and_cost(
    api: httpx2.AsyncClient, db: Database, tenant: Tenant
) -> None:
    task = await (await PlayedTask(db, tenant).accept()).begin()
    await task.say("one ")
    await task.say("two")
    await task.end()
    seen = (await api.get(f"/v1/tasks/{task.id}", headers=tenant.headers)).json()
    # Prompt of 3 tokens, 1 of them cached, and 2 tokens out, at $1, $0.1 and $2 a million.
    cost = (Decimal(2) * 1 + Decimal("0.1") + 2 * 2) / 1_000_000
    assert seen["status"] == "succeeded"
    assert (seen["user"], seen["tags"]) == ("ada", {"project": "apollo"})
    assert Decimal(seen["cost_usd"]) == cost
    assert (seen["prompt_tokens"], seen["cached_tokens"], seen["completion_tokens"]) == (3, 1, 2)

    steps = (await api.get(f"/v1/tasks/{task.id}/steps", headers=tenant.headers)).json()
    assert steps["web_ui"].endswith("/history")
    (step,) = steps["steps"]
    assert (step["status"], step["model"], step["finish_reason"]) == ("succeeded", MODEL, "stop")
    assert Decimal(step["cost_usd"]) == cost
    (call,) = step["model_calls"]
    assert (call["attempt"], call["outcome"], call["output_tokens"]) == (1, "succeeded", 2)

    for group_by, group in (
        ("model", MODEL),
        ("user", "ada"),
        ("tag", "project=apollo"),
        ("task", str(task.id)),
        ("key", str(tenant.key_id)),
        ("team", str(tenant.team_id)),
        ("organisation", str(tenant.organisation_id)),
        ("step", f"{task.id}:1"),
    ):
        spent = (
            await api.get("/v1/spend", params={"group_by": group_by}, headers=tenant.headers)
        ).json()
        (line,) = spent["lines"]
        assert line["group"] == group
        assert Decimal(line["billed_usd"]) == Decimal(spent["billed_usd"]) == cost
        assert "E" not in line["billed_usd"]


async def test_spend_is_of_its_period_and_filters(
    api: httpx2.AsyncClient, db: Database, tenant: Tenant
) -> None:
    task = await (await PlayedTask(db, tenant).accept()).begin()
    await task.end()
    now = datetime.now(UTC)

    async def lines(**params: Any) -> int:
        answer = await api.get("/v1/spend", params=params, headers=tenant.headers)
        assert answer.status_code == 200, answer.text
        return len(answer.json()["lines"])

    assert await lines() == 1
    assert await lines(until=(now - timedelta(hours=1)).isoformat()) == 0
    assert await lines(model="other") == 0
    assert await lines(task=str(task.id), user="ada", team=str(tenant.team_id)) == 1
    for params in (
        {"group_by": "secret"},
        {"since": "yesterday"},
        {"since": "2026-01-01T00:00:00"},
        {"since": "2020-01-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
        {"since": now.isoformat(), "until": (now - timedelta(days=1)).isoformat()},
        {"task": "x"},
        {"user": "a\x00"},
    ):
        answer = await api.get("/v1/spend", params=params, headers=tenant.headers)
        assert answer.status_code == 422, params
        assert answer.json()["errors"][0]["in"] == "query"


async def test_pages_of_tasks_are_complete_and_do_not_overlap(
    api: httpx2.AsyncClient, db: Database, tenant: Tenant
) -> None:
    made = [str((await PlayedTask(db, tenant).accept()).id) for _ in range(7)]
    found: list[str] = []
    cursor: str | None = None
    pages = 0
    while True:
        params = {"limit": "3"} | ({"cursor": cursor} if cursor else {})
        page = (await api.get("/v1/tasks", params=params, headers=tenant.headers)).json()
        found += [task["id"] for task in page["tasks"]]
        pages += 1
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == made[::-1]
    assert pages == 3
    none = await api.get("/v1/tasks?status=failed", headers=tenant.headers)
    assert none.json()["tasks"] == []


async def test_a_document_starts_one_ingestion_and_the_same_again_none(
    api: httpx2.AsyncClient, db: Database, tenant: Tenant, temporal: Client
) -> None:
    made = await api.post(
        "/v1/collections",
        json={"name": "docs", "description": "All of it."},
        headers=tenant.headers,
    )
    assert made.status_code == 201
    again = await api.post("/v1/collections", json={"name": "docs"}, headers=tenant.headers)
    assert (again.status_code, again.json()["code"]) == (409, "OVL-1005")

    path = "/v1/collections/docs/documents"
    body = {"external_id": "a.md", "title": "A", "text": "# A\nalpha"}
    first = await api.post(path, json=body, headers=tenant.headers)
    assert (first.status_code, first.json()["changed"]) == (202, True)
    document = first.json()
    handle = temporal.get_workflow_handle(document["workflow_id"])
    assert (await handle.describe()).workflow_type == "IngestDocument"

    # Not searchable yet: sent again, it finds the workflow that is going.
    second = (await api.post(path, json=body, headers=tenant.headers)).json()
    assert (second["changed"], second["version"]) == (False, 1)
    assert second["workflow_id"] == document["workflow_id"]

    await db.run(
        tenant.organisation_id,
        "select finish_document(%s, %s, 1, 'ready', null)",
        (tenant.organisation_id, document["id"]),
    )
    third = await api.post(path, json=body, headers=tenant.headers)
    assert (third.status_code, third.json()["changed"]) == (200, False)
    assert third.json()["workflow_id"] is None
    state = (await api.get(f"{path}/{document['id']}", headers=tenant.headers)).json()
    assert (state["status"], state["version"]) == ("ready", 1)

    changed = await api.post(path, json=body | {"text": "beta"}, headers=tenant.headers)
    assert (changed.status_code, changed.json()["version"]) == (202, 2)
    stored = await get_document(db, tenant.organisation_id, document["id"])
    assert stored is not None
    assert stored.version == 2
    with pytest.raises(RPCError):
        await temporal.get_workflow_handle(f"ingest-{document['id']}-3").describe()


async def test_the_document_holds_no_script_and_lists_every_operation(
    api: httpx2.AsyncClient,
) -> None:
    page = await api.get("/docs")
    assert page.status_code == 200
    assert "<script" not in page.text
    assert "http://" not in page.text.replace("http://127.0.0.1", "")
    for path in (await api.get("/openapi.json")).json()["paths"]:
        assert path.replace("{", "{") in page.text


async def test_metrics_count_routes_and_hold_no_ids(
    api: httpx2.AsyncClient, tenant: Tenant
) -> None:
    await api.get("/v1/tasks", headers=tenant.headers)
    answer = await api.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'overline_http_requests_total{method="GET",route="/v1/tasks"' in answer.text
    assert str(tenant.key_id) not in answer.text
    await api.get("/v1/no-such-route")
    assert "no-such-route" not in (await api.get("/metrics")).text
