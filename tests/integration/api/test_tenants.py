"""One tenant never sees another's anything, and a key is all that counts."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx2
import pytest
from uuid_utils.compat import uuid7

from store.database import Database
from store.provision import create_key, set_key_enabled
from tests.integration.api.conftest import MODEL, Tenant, make_tenant
from tests.integration.api.played import PlayedTask


async def _same_as_random(
    api: httpx2.AsyncClient, tenant: Tenant, method: str, path: str, theirs: Any, **request: Any
) -> None:
    answers = []
    for identifier in (theirs, uuid7()):
        response = await api.request(
            method, path.format(id=identifier), headers=tenant.headers, **request
        )
        facts = response.json() | {"request_id": ""}
        if isinstance(facts.get("error"), dict):
            facts["error"] = facts["error"] | {"request_id": ""}
        answers.append((response.status_code, facts))
    assert answers[0] == answers[1], path
    assert answers[0][0] == 404, path


async def test_another_tenants_ids_are_like_random_ones(
    api: httpx2.AsyncClient, db: Database, tenant: Tenant, other_tenant: Tenant
) -> None:
    """Every route of the OpenAPI document that takes an id."""
    task = await (await PlayedTask(db, tenant).accept()).begin()
    collection = (
        await api.post("/v1/collections", json={"name": "c"}, headers=tenant.headers)
    ).json()
    sent = await api.post(
        f"/v1/collections/{collection['id']}/documents",
        json={"external_id": "d", "text": "t"},
        headers=tenant.headers,
    )
    document = sent.json()
    new = {"external_id": "e", "text": "u"}
    agent = (await api.post("/v1/agents", json={"name": "theirs"}, headers=tenant.headers)).json()[
        "name"
    ]
    yearly = {"name": "s", "interval_seconds": 30_000_000, "task": {"input": "?", "model": MODEL}}
    schedule = (await api.post("/v1/schedules", json=yearly, headers=tenant.headers)).json()["id"]
    inputs = {"inputs": ["?"], "model": MODEL}
    over = (await api.post("/v1/maps", json=inputs, headers=tenant.headers)).json()["id"]
    own = (await api.post("/v1/tasks", json={"input": "?"}, headers=other_tenant.headers)).json()[
        "id"
    ]
    begun = await api.post("/v1/sessions", json={"model": MODEL}, headers=tenant.headers)
    session = begun.json()["id"]
    said = {"json": {"content": "hello"}}
    decided = {"json": {"decision": "approve"}}
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    chatted = await api.post("/v1/chat/completions", json=chat, headers=tenant.headers)
    asked = {"model": MODEL, "input": "hi"}
    responded = await api.post("/v1/responses", json=asked, headers=tenant.headers)
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": chat}
    sent = await api.post(
        "/v1/files",
        data={"purpose": "batch"},
        files={"file": ("a.jsonl", json.dumps(line).encode())},
        headers=tenant.headers,
    )
    file = sent.json()["id"]
    of_file = {"input_file_id": file, "completion_window": "1h"}
    submitted = await api.post(
        "/v1/batches", json={**of_file, "endpoint": line["url"]}, headers=tenant.headers
    )
    kept = {
        "file": UUID(hex=file.removeprefix("file-")),
        "batch": UUID(hex=submitted.json()["id"].removeprefix("batch_")),
    }
    own_ids = {
        "chatcmpl-": UUID(hex=chatted.json()["id"].removeprefix("chatcmpl-")),
        "resp_": UUID(hex=responded.json()["id"].removeprefix("resp_")),
    }
    rate = {"scope": "organisation", "requests_per_minute": 10_000}
    limit = (await api.post("/v1/limits", json=rate, headers=tenant.headers)).json()["id"]
    spending = {"scope": "organisation", "cap_usd": "1000000"}
    made = await api.post("/v1/budgets", json=spending, headers=tenant.headers)
    budget = made.json()["budgets"][0]["id"]
    checks: dict[tuple[str, str], tuple[str, Any, dict[str, Any]]] = {
        ("get", "/v1/tasks/{task_id}"): ("/v1/tasks/{id}", task.id, {}),
        ("get", "/v1/tasks/{task_id}/steps"): ("/v1/tasks/{id}/steps", task.id, {}),
        ("get", "/v1/tasks/{task_id}/events"): ("/v1/tasks/{id}/events", task.id, {}),
        ("post", "/v1/tasks/{task_id}/cancel"): ("/v1/tasks/{id}/cancel", task.id, {}),
        ("get", "/v1/collections/{collection}"): ("/v1/collections/{id}", collection["id"], {}),
        ("post", "/v1/collections/{collection}/documents"): (
            "/v1/collections/{id}/documents",
            collection["id"],
            {"json": new},
        ),
        ("get", "/v1/collections/{collection}/documents/{document_id}"): (
            f"/v1/collections/{{id}}/documents/{document['id']}",
            collection["id"],
            {},
        ),
        ("get", "/v1/maps/{map_id}/results"): ("/v1/maps/{id}/results", over, {}),
        ("post", "/v1/tasks/{task_id}/pause"): ("/v1/tasks/{id}/pause", task.id, {}),
        ("post", "/v1/tasks/{task_id}/resume"): ("/v1/tasks/{id}/resume", task.id, {}),
        ("get", "/v1/tasks/{task_id}/why"): ("/v1/tasks/{id}/why", task.id, {}),
        ("post", "/v1/tasks/{task_id}/fork"): (
            "/v1/tasks/{id}/fork",
            task.id,
            {"json": {"from_step": 1}},
        ),
        ("get", "/v1/tasks/{task_id}/diff/{other}"): (f"/v1/tasks/{own}/diff/{{id}}", task.id, {}),
        ("get", "/v1/tasks/{task_id}/approvals"): ("/v1/tasks/{id}/approvals", task.id, {}),
        ("post", "/v1/tasks/{task_id}/approvals/{call_id}"): (
            "/v1/tasks/{id}/approvals/1",
            task.id,
            decided,
        ),
        ("get", "/v1/tasks/{task_id}/webhooks"): ("/v1/tasks/{id}/webhooks", task.id, {}),
        ("post", "/v1/tasks/{task_id}/webhooks/{delivery_id}/redeliver"): (
            f"/v1/tasks/{{id}}/webhooks/{uuid7()}/redeliver",
            task.id,
            {},
        ),
        ("get", "/v1/tasks/{task_id}/blobs/{sha256}"): (
            f"/v1/tasks/{{id}}/blobs/{'0' * 64}",
            task.id,
            {},
        ),
        ("get", "/v1/tasks/{task_id}/messages"): ("/v1/tasks/{id}/messages", task.id, {}),
        ("post", "/v1/tasks/{task_id}/messages"): ("/v1/tasks/{id}/messages", task.id, said),
        ("get", "/v1/sessions/{session_id}"): ("/v1/sessions/{id}", session, {}),
        ("delete", "/v1/sessions/{session_id}"): ("/v1/sessions/{id}", session, {}),
        ("get", "/v1/sessions/{session_id}/events"): ("/v1/sessions/{id}/events", session, {}),
        ("get", "/v1/sessions/{session_id}/messages"): ("/v1/sessions/{id}/messages", session, {}),
        ("post", "/v1/sessions/{session_id}/messages"): (
            "/v1/sessions/{id}/messages",
            session,
            said,
        ),
        ("get", "/v1/chat/completions/{completion_id}"): (
            "/v1/chat/completions/chatcmpl-{id}",
            own_ids["chatcmpl-"],
            {},
        ),
        ("get", "/v1/responses/{response_id}"): (
            "/v1/responses/resp_{id}",
            own_ids["resp_"],
            {},
        ),
        ("get", "/v1/files/{file_id}"): ("/v1/files/file-{id}", kept["file"], {}),
        ("get", "/v1/files/{file_id}/content"): ("/v1/files/file-{id}/content", kept["file"], {}),
        ("delete", "/v1/files/{file_id}"): ("/v1/files/file-{id}", kept["file"], {}),
        ("get", "/v1/batches/{batch_id}"): ("/v1/batches/batch_{id}", kept["batch"], {}),
        ("post", "/v1/batches/{batch_id}/cancel"): (
            "/v1/batches/batch_{id}/cancel",
            kept["batch"],
            {},
        ),
        # Models are the same for everybody.
        ("get", "/v1/models/{model}"): ("/v1/models/{id}", "no-such-model", {}),
        ("get", "/v1/agents/{name}"): ("/v1/agents/{id}", agent, {}),
        ("get", "/v1/agents/{name}/versions"): ("/v1/agents/{id}/versions", agent, {}),
        ("post", "/v1/agents/{name}/archive"): ("/v1/agents/{id}/archive", agent, {}),
        ("get", "/v1/schedules/{schedule_id}"): ("/v1/schedules/{id}", schedule, {}),
        ("delete", "/v1/schedules/{schedule_id}"): ("/v1/schedules/{id}", schedule, {}),
        ("post", "/v1/schedules/{schedule_id}/pause"): (
            "/v1/schedules/{id}/pause",
            schedule,
            {},
        ),
        ("post", "/v1/schedules/{schedule_id}/resume"): (
            "/v1/schedules/{id}/resume",
            schedule,
            {},
        ),
        ("post", "/v1/schedules/{schedule_id}/run"): ("/v1/schedules/{id}/run", schedule, {}),
        ("get", "/v1/teams/{team_id}"): ("/v1/teams/{id}", tenant.team_id, {}),
        ("patch", "/v1/teams/{team_id}"): (
            "/v1/teams/{id}",
            tenant.team_id,
            {"json": {"name": "theirs"}},
        ),
        ("get", "/v1/keys/{key_id}"): ("/v1/keys/{id}", tenant.key_id, {}),
        ("patch", "/v1/keys/{key_id}"): (
            "/v1/keys/{id}",
            tenant.key_id,
            {"json": {"name": "theirs"}},
        ),
        ("post", "/v1/keys/{key_id}/disable"): ("/v1/keys/{id}/disable", tenant.key_id, {}),
        ("post", "/v1/keys/{key_id}/enable"): ("/v1/keys/{id}/enable", tenant.key_id, {}),
        ("post", "/v1/keys/{key_id}/rotate"): (
            "/v1/keys/{id}/rotate",
            tenant.key_id,
            {"json": {}},
        ),
        # Registering needs a worker, which this suite has not: tests/integration/tasks/test_tools
        # crosses tenants with a real registration.
        ("delete", "/v1/limits/{limit_id}"): ("/v1/limits/{id}", limit, {}),
        ("get", "/v1/budgets/{budget_id}"): ("/v1/budgets/{id}", budget, {}),
        ("delete", "/v1/budgets/{budget_id}"): ("/v1/budgets/{id}", budget, {}),
        ("delete", "/v1/tools/{registration}"): ("/v1/tools/{id}", uuid7(), {}),
    }
    described = (await api.get("/openapi.json")).json()["paths"]
    with_ids = {
        (verb, path)
        for path, verbs in described.items()
        for verb in verbs
        if "{" in path and not path.startswith("/codec")
    }
    assert with_ids == set(checks)
    for (verb, _), (path, theirs, request) in checks.items():
        await _same_as_random(api, other_tenant, verb.upper(), path, theirs, **request)

    # In a collection of one's own, too, another's document is not there.
    await api.post("/v1/collections", json={"name": "own"}, headers=other_tenant.headers)
    await _same_as_random(
        api, other_tenant, "GET", "/v1/collections/own/documents/{id}", document["id"]
    )


async def test_lists_and_sums_hold_only_ones_own(
    api: httpx2.AsyncClient, db: Database, tenant: Tenant, other_tenant: Tenant
) -> None:
    task = await (await PlayedTask(db, tenant).accept()).begin()
    await task.say("x")
    await task.end()
    mine = (await api.get("/v1/tasks", headers=tenant.headers)).json()["tasks"]
    theirs = (await api.get("/v1/tasks", headers=other_tenant.headers)).json()["tasks"]
    assert [item["id"] for item in mine] == [str(task.id)]
    assert theirs == []
    for owner, calls in ((tenant, 1), (other_tenant, 0)):
        spent = (await api.get("/v1/spend", headers=owner.headers)).json()
        assert sum(line["calls"] for line in spent["lines"]) == calls


TOKENS = [
    None,
    "",
    "Bearer",
    "Basic b2w6eA==",
    "Bearer ol_",
    "Bearer not-a-key",
    f"Bearer ol_{'0' * 32}_{'A' * 43}",
]


@pytest.mark.parametrize("header", TOKENS)
async def test_no_key_or_an_unknown_one_is_a_401(
    api: httpx2.AsyncClient, header: str | None
) -> None:
    headers = {} if header is None else {"Authorization": header}
    for method, path in (("GET", "/v1/tasks"), ("POST", "/v1/tasks"), ("GET", "/v1/spend")):
        response = await api.request(method, path, headers=headers)
        assert response.status_code == 401
        assert response.json()["code"] == "OVL-2001"
        assert response.headers["www-authenticate"].startswith("Bearer")


async def test_every_character_of_a_token_counts(api: httpx2.AsyncClient, tenant: Tenant) -> None:
    token = tenant.token
    assert (await api.get("/v1/tasks", headers=tenant.headers)).status_code == 200
    for place in (3, 20, 36, 40, len(token) - 2):
        other = "0" if token[place] != "0" else "1"
        forged = token[:place] + other + token[place + 1 :]
        for bad in (forged, token[:place], token + "A"):
            response = await api.get("/v1/tasks", headers={"Authorization": f"Bearer {bad}"})
            assert response.status_code == 401


async def test_a_key_switched_off_stops_at_once(
    api: httpx2.AsyncClient, admin_url: str, tenant: Tenant
) -> None:
    assert (await api.get("/v1/tasks", headers=tenant.headers)).status_code == 200
    set_key_enabled(admin_url, tenant.organisation_id, tenant.key_id, enabled=False)
    off = await api.get("/v1/tasks", headers=tenant.headers)
    set_key_enabled(admin_url, tenant.organisation_id, tenant.key_id, enabled=True)
    on = await api.get("/v1/tasks", headers=tenant.headers)
    assert (off.status_code, on.status_code) == (401, 200)
    expired = create_key(
        admin_url,
        tenant.organisation_id,
        tenant.team_id,
        "old",
        expires_at=datetime.now(UTC) - timedelta(seconds=1),
    )
    response = await api.get("/v1/tasks", headers={"Authorization": f"Bearer {expired.token}"})
    assert response.status_code == 401


async def test_a_key_does_only_what_its_scopes_say(api: httpx2.AsyncClient, admin_url: str) -> None:
    """Every operation of the document, with a key of one scope that it does not need."""
    keys = {scope: make_tenant(admin_url, scopes=(scope,)) for scope in ("tasks", "spend")}
    described = (await api.get("/openapi.json")).json()["paths"]
    for path, verbs in described.items():
        for verb, operation in verbs.items():
            if not operation.get("security"):
                continue
            key = keys["tasks" if "/spend" in path or "/budgets" in path else "spend"]
            url = re.sub(r"\{\w+\}", str(uuid7()), path)
            response = await api.request(verb.upper(), url, headers=key.headers)
            told = response.json()
            code = told["error"]["overline_code"] if "error" in told else told["code"]
            assert (response.status_code, code) == (403, "OVL-2003"), url
