"""Keys over REST: restrictions at every door, rotation, who may give what, and no secret told."""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import psycopg
import pytest
from uuid_utils.compat import uuid7

from settings import Settings
from store.database import Database
from tests.integration.api.conftest import MODEL, Tenant, make_tenant, serving


class Admin:
    """What an administrator does over REST."""

    def __init__(self, api: httpx2.AsyncClient, tenant: Tenant) -> None:
        self.api = api
        self.tenant = tenant

    async def key(self, **fields: Any) -> dict[str, Any]:
        """Make a key."""
        body = {"team": str(self.tenant.team_id), "name": "k", **fields}
        made = await self.api.post("/v1/keys", json=body, headers=self.tenant.headers)
        assert made.status_code == 201, made.text
        found: dict[str, Any] = made.json()
        return found

    async def change(self, key: dict[str, Any], **fields: Any) -> None:
        """Change one."""
        path = f"/v1/keys/{key['id']}"
        changed = await self.api.patch(path, json=fields, headers=self.tenant.headers)
        assert changed.status_code == 200, changed.text


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def admin(api: httpx2.AsyncClient, tenant: Tenant) -> Admin:
    """The administrator of the test's tenant."""
    return Admin(api, tenant)


async def test_a_key_is_made_shown_and_changed(admin: Admin, other_tenant: Tenant) -> None:
    api, headers = admin.api, admin.tenant.headers
    made = await admin.key(
        name="nightly",
        role="member",
        service_account=True,
        models=["small-*"],
        addresses=["10.1.2.3/8", "2001:db8::1"],
        endpoints=["/v1/tasks"],
        tools=[],
        expires_at=(datetime.now(UTC) + timedelta(days=1)).isoformat(),
    )
    token = made.pop("token")
    assert token.startswith(made["prefix"] + "_")
    assert made["addresses"] == ["10.0.0.0/8", "2001:db8::1/128"]
    assert (made["role"], made["scopes"]) == ("member", ["tasks", "collections", "spend"])
    assert (made["disabled"], made["last_used_at"], made["tools"]) == (False, None, [])
    page = (await api.get("/v1/keys?limit=1", headers=headers)).json()
    assert page["keys"] == [made]
    rest = (await api.get(f"/v1/keys?cursor={page['next_cursor']}", headers=headers)).json()
    assert [key["id"] for key in rest["keys"]] == [str(admin.tenant.key_id)]
    assert (await api.get(f"/v1/keys/{made['id']}", headers=headers)).json() == made
    await admin.change(made, models=None, role="reader", expires_at=None)
    now = (await api.get(f"/v1/keys/{made['id']}", headers=headers)).json()
    assert (now["models"], now["expires_at"], now["role"]) == (None, None, "reader")
    assert now["tools"] == []
    theirs = (await api.get("/v1/keys", headers=other_tenant.headers)).json()["keys"]
    assert made["id"] not in [key["id"] for key in theirs]
    log = (await api.get("/v1/audit?action=key.", headers=headers)).json()["entries"]
    assert [entry["action"] for entry in log] == ["key.changed", "key.created"]
    assert {entry["actor"] for entry in log} == {f"ol_{admin.tenant.key_id.hex}"}
    assert log[0]["detail"]["before"]["models"] == ["small-*"]
    assert log[0]["detail"]["after"]["models"] is None
    verdict = (await api.get("/v1/audit/verify", headers=headers)).json()
    assert verdict == {"intact": True, "entries": 2, "first_broken": None}


BAD: list[dict[str, Any]] = [
    {"name": ""},
    {"name": "a\x00b"},
    {"scopes": []},
    {"scopes": ["root"]},
    {"role": "owner"},
    {"role": "member", "scopes": ["tasks"]},
    {"models": ["'; drop table api_keys; --"]},
    {"addresses": ["10.0.0.0/99"]},
    {"addresses": ["localhost"]},
    {"endpoints": ["v1/tasks"]},
    {"endpoints": ["/v1/tasks?x"]},
    {"tools": ["x"] * 101},
    {"expires_at": "2020-01-01T00:00:00Z"},
    {"expires_at": "tomorrow"},
    {"service_account": "yes"},
    {"secret_hash": "00"},
]


@pytest.mark.parametrize("fields", BAD, ids=str)
async def test_what_cannot_be_is_refused(admin: Admin, fields: dict[str, Any]) -> None:
    body = {"team": str(admin.tenant.team_id), "name": "k", **fields}
    answer = await admin.api.post("/v1/keys", json=body, headers=admin.tenant.headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "OVL-1001")


async def test_teams_have_names_of_their_own(admin: Admin) -> None:
    api, headers = admin.api, admin.tenant.headers
    made = await api.post("/v1/teams", json={"name": "second"}, headers=headers)
    assert made.status_code == 201
    taken = await api.post("/v1/teams", json={"name": "second"}, headers=headers)
    assert (taken.status_code, taken.json()["code"]) == (409, "OVL-1005")
    path = f"/v1/teams/{made.json()['id']}"
    taken = await api.patch(path, json={"name": "team"}, headers=headers)
    assert taken.status_code == 409
    renamed = (await api.patch(path, json={"name": "a"}, headers=headers)).json()
    assert (renamed["name"], renamed["keys"]) == ("a", 0)
    listed = (await api.get("/v1/teams", headers=headers)).json()["teams"]
    assert [team["name"] for team in listed] == ["a", "team"]


async def test_nobody_gives_what_they_have_not(
    api: httpx2.AsyncClient, admin_url: str, admin: Admin
) -> None:
    mighty = await admin.key(scopes=["tasks", "codec"])
    for body in ({"scopes": ["interactive"]}, {"scopes": ["tasks", "interactive"]}):
        full = {"team": str(admin.tenant.team_id), "name": "k", **body}
        refused = await api.post("/v1/keys", json=full, headers=admin.tenant.headers)
        assert (refused.status_code, refused.json()["scope"]) == (403, "interactive")
    little = _bearer((await admin.key(scopes=["admin"]))["token"])
    for method, path, body in (
        ("PATCH", f"/v1/keys/{admin.tenant.key_id}", {"scopes": ["interactive"]}),
        ("POST", f"/v1/keys/{mighty['id']}/rotate", {}),
    ):
        refused = await api.request(method, path, json=body, headers=little)
        assert refused.status_code == 403, path
    member = _bearer((await admin.key(role="member"))["token"])
    assert (await api.get("/v1/keys", headers=member)).status_code == 403


async def test_a_reader_reads_and_changes_nothing(admin: Admin) -> None:
    reader = _bearer((await admin.key(role="reader"))["token"])
    for path in ("/v1/tasks", "/v1/collections", "/v1/spend", "/v1/models", "/v1/sessions"):
        assert (await admin.api.get(path, headers=reader)).status_code == 200, path
    for path in ("/v1/tasks", "/v1/collections", "/v1/agents", "/v1/chat/completions"):
        answer = await admin.api.post(path, json={}, headers=reader)
        assert answer.status_code == 403, path
    for path in ("/v1/keys", "/v1/audit"):
        assert (await admin.api.get(path, headers=reader)).status_code == 403, path


TASK = {"input": "?", "model": MODEL}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": '[[say text="hi"]]'}]}
EMBED = {"model": MODEL, "input": ["?"]}
SCHEDULE = {"name": "s", "interval_seconds": 30_000_000, "task": TASK}


async def test_models_and_routes_at_every_door(admin: Admin) -> None:
    """What is not allowed is a typed 403, and what is allowed passes."""
    api = admin.api
    key = await admin.key(models=["another"])
    headers = _bearer(key["token"])
    doors: list[tuple[str, dict[str, Any]]] = [
        ("/v1/tasks", TASK),
        ("/v1/tasks", {"input": "?"}),
        ("/v1/maps", {"inputs": ["?"], "model": MODEL}),
        ("/v1/schedules", SCHEDULE),
        ("/v1/sessions", {"model": MODEL}),
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", CHAT | {"model": "default"}),
        ("/v1/responses", {"model": MODEL, "input": "?"}),
    ]
    for path, body in doors:
        refused = await api.post(path, json=body, headers=headers)
        assert refused.status_code == 403, (path, refused.text)
        assert "OVL-2003" in refused.text, path
        assert "may not use this" in refused.text, path

    async def listed() -> set[str]:
        found = (await api.get("/v1/models", headers=headers)).json()["data"]
        return {each["id"] for each in found}

    assert await listed() == set()
    assert (await api.get(f"/v1/models/{MODEL}", headers=headers)).status_code == 404
    await admin.change(key, models=None, routes=["default"])
    assert await listed() == {"default"}
    for path, body in doors:
        if "default" in str(body) or "model" not in str(body):
            passed = await api.post(path, json=body, headers=headers)
            assert passed.status_code in (200, 202), (path, passed.text)
    await admin.change(key, models=[MODEL])
    assert await listed() == {"default", MODEL}
    assert (await api.get(f"/v1/models/{MODEL}", headers=headers)).status_code == 200
    for path, body in doors:
        passed = await api.post(path, json=body, headers=headers)
        assert passed.status_code in (200, 201, 202), (path, passed.text)


async def test_tools_of_a_task(admin: Admin) -> None:
    headers = _bearer((await admin.key(tools=["search"]))["token"])
    asked = TASK | {"tools": [{"name": "calculator"}]}
    refused = await admin.api.post("/v1/tasks", json=asked, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "OVL-2003")
    assert (await admin.api.post("/v1/tasks", json=TASK, headers=headers)).status_code == 202


async def test_endpoints_and_addresses_of_a_key(admin: Admin) -> None:
    api = admin.api
    key = await admin.key(endpoints=["/v1/chat"])
    headers = _bearer(key["token"])
    assert (await api.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200
    refusals = [
        await api.get("/v1/tasks", headers=headers),
        await api.post("/v1/responses", json={"model": MODEL, "input": "?"}, headers=headers),
        await api.get("/v1/models", headers=headers),
    ]
    assert [answer.status_code for answer in refusals] == [403] * 3
    await admin.change(key, endpoints=None, addresses=["192.0.2.0/24"])
    for answer in (
        await api.get("/v1/tasks", headers=headers),
        # This process knows the token as good; the statement that opens the call does not.
        await api.post("/v1/chat/completions", json=CHAT, headers=headers),
    ):
        assert answer.status_code == 403
        assert "OVL-2003" in answer.text
    await admin.change(key, addresses=["127.0.0.1"])
    assert (await api.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200


async def test_every_process_heeds_a_change_at_once(
    admin: Admin, settings: Settings, db: Database
) -> None:
    key = await admin.key()
    path = f"/v1/keys/{key['id']}"
    async with serving(settings) as second:

        async def seen(token: str) -> set[int]:
            found = set()
            for api in (admin.api, second):
                for method, url, body in (
                    ("GET", "/v1/tasks", None),
                    ("POST", "/v1/chat/completions", CHAT),
                ):
                    answer = await api.request(method, url, json=body, headers=_bearer(token))
                    found.add(answer.status_code)
            return found

        assert await seen(key["token"]) == {200}
        for way, expected in (("disable", {401}), ("enable", {200})):
            await admin.api.post(f"{path}/{way}", headers=admin.tenant.headers)
            assert await seen(key["token"]) == expected
            # A stranger is told nothing of what is wrong with a request.
            empty = await second.post(
                "/v1/chat/completions", json={}, headers=_bearer(key["token"])
            )
            assert empty.status_code == (401 if way == "disable" else 400)
        await admin.change(key, expires_at="2020-01-01T00:00:00Z")
        assert await seen(key["token"]) == {401}
        await admin.change(key, expires_at=None)
        rotated = await admin.api.post(
            f"{path}/rotate", json={"overlap_seconds": 600}, headers=admin.tenant.headers
        )
        token = rotated.json()["token"]
        assert await seen(token) == {200}
        assert await seen(key["token"]) == {200}
        await db.run(
            admin.tenant.organisation_id,
            "update api_keys set previous_until = now() where key_id = %s",
            (key["id"],),
        )
        assert await seen(key["token"]) == {401}
        assert await seen(token) == {200}
        await admin.change(key, models=["another"])
        chat = await second.post("/v1/chat/completions", json=CHAT, headers=_bearer(token))
        assert chat.status_code == 403


async def test_when_it_was_last_used_is_noted(admin: Admin) -> None:
    key = await admin.key()
    await admin.api.get("/v1/tasks", headers=_bearer(key["token"]))
    path = f"/v1/keys/{key['id']}"
    async with asyncio.timeout(20):
        while True:
            shown = (await admin.api.get(path, headers=admin.tenant.headers)).json()
            if shown["last_used_at"] is not None:
                return
            await asyncio.sleep(0.2)


INJECTIONS = [
    "ol_' or '1'='1",
    f"ol_{'0' * 32}_' or 1=1; drop table api_keys; --",
    f"ol_{'0' * 31}'_{'A' * 43}",
    f"ol_{'0' * 32}_{'A' * 42}'",
    f"ol_{'0' * 32}_{'A' * 43}; select pg_sleep(5)",
    f"ol_{'0' * 32}_{'A' * 43}\\",
    "ol_" + "%27%20or%201%3D1",
    "ol_$1_$2",
    "x" * 5000,
    "ol_{}_{}",
    f"OL_{'0' * 32}_{'A' * 43}",
]


@pytest.mark.parametrize("token", INJECTIONS)
@pytest.mark.parametrize("path", ["/v1/tasks", "/v1/chat/completions"])
async def test_a_token_of_the_wrong_form_asks_no_database(
    api: httpx2.AsyncClient, db: Database, path: str, token: str
) -> None:
    method, body = ("GET", None) if path == "/v1/tasks" else ("POST", CHAT)
    answer = await api.request(method, path, json=body, headers=_bearer(token))
    assert answer.status_code == 401
    assert token[:40] not in answer.text
    assert (await db.run_untenanted("select 1 as one"))[0]["one"] == 1


#: What a header may hold; DEL, as any control character, is no HTTP at all.
_IN_HEADERS = [code for code in range(32, 256) if code != 127]


async def test_nothing_but_a_key_is_an_identity(api: httpx2.AsyncClient, db: Database) -> None:
    chance = random.Random(4711)
    asked = 0
    for name, value in (
        ("Host", "localhost"),
        ("Host", "127.0.0.1:8000"),
        ("X-Forwarded-Host", "localhost"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Real-IP", "::1"),
        ("X-Original-URL", "/healthz"),
        ("Cookie", "token=admin"),
        *(
            (
                "Authorization",
                "".join(map(chr, chance.choices(_IN_HEADERS, k=chance.randrange(90)))).strip(),
            )
            for _ in range(100)
        ),
        *(
            (
                "Authorization",
                "Bearer ol_" + "".join(chance.choices("0123456789abcdef_'\\;%", k=76)),
            )
            for _ in range(100)
        ),
    ):
        for method, path in (("GET", "/v1/tasks"), ("POST", "/v1/chat/completions")):
            answer = await api.request(
                method, path, json=CHAT, headers={name: value.encode("latin1")}
            )
            assert answer.status_code == 401, (name, value)
            asked += 1
    assert asked == 414
    assert (await db.run_untenanted("select 1 as one"))[0]["one"] == 1


async def test_a_key_is_never_told_wherever_it_is_put(
    api: httpx2.AsyncClient, admin_url: str, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    dead = make_tenant(admin_url)
    canaries = [tenant.token, dead.token[:-1] + "A", f"sk-{uuid7().hex}{'c' * 20}"]
    answers: list[httpx2.Response] = []
    for canary in canaries:
        for path in ("/v1/tasks", "/v1/chat/completions", "/v1/nothing", f"/v1/tasks/{uuid7()}"):
            for headers in (
                {"Authorization": f"Bearer {canary}"},
                {"Authorization": f"Basic {base64.b64encode(canary.encode()).decode()}"},
                {"Authorization": canary},
                {"X-API-Key": canary},
                {"api-key": canary},
            ):
                answers.append(await api.get(path, headers=headers))
                answers.append(await api.post(path, json={"nothing": 1}, headers=headers))
            answers.append(await api.get(path, params={"api_key": canary, "key": canary}))
            answers.append(
                await api.post(path, params={"limit": canary}, json=TASK, headers=tenant.headers)
            )
    told = "\n".join(
        [
            *(answer.text + str(answer.headers) for answer in answers),
            *(str(vars(record)) for record in caplog.records if record.name.startswith("overline")),
        ]
    )
    with psycopg.connect(admin_url, dbname="overline") as superuser:
        for (table,) in superuser.execute(
            "select c.oid::regclass::text from pg_class c where c.relkind = 'r'"
            " and c.relnamespace = 'public'::regnamespace"
        ).fetchall():
            rows = superuser.execute(f"select t::text from {table} t").fetchall()
            told += "\n".join(row[0] for row in rows)
    for canary in canaries:
        secret = canary[-43:]
        for form in (secret, base64.b64encode(canary.encode()).decode()):
            assert form not in told
