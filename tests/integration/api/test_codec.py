"""The remote codec: who may read which payloads, from which page."""

from __future__ import annotations

import base64
from typing import Any

import httpx2
import pytest
from google.protobuf.json_format import MessageToDict
from temporalio.api.common.v1 import Payload
from temporalio.client import Client

from settings import Settings
from store import audit
from store.database import Database
from tests.integration.api.conftest import CAPABILITY, Tenant
from tests.integration.api.test_submission import HELLO
from workflows.codec import EncryptionCodec, KeyRing

UI = "http://127.0.0.1:8233"


@pytest.fixture
async def encrypted(api: httpx2.AsyncClient, tenant: Tenant, temporal: Client) -> dict[str, Any]:
    """The input of a task of `tenant`, as Temporal stores it."""
    accepted = (await api.post("/v1/tasks", json=HELLO, headers=tenant.headers)).json()
    history = await temporal.get_workflow_handle(f"task-{accepted['id']}").fetch_history()
    started = history.events[0].workflow_execution_started_event_attributes
    return {"payloads": [MessageToDict(payload) for payload in started.input.payloads]}


def _text(answer: httpx2.Response) -> str:
    return base64.b64decode(answer.json()["payloads"][0]["data"]).decode()


async def test_a_key_reads_its_own_payloads_and_it_is_recorded(
    api: httpx2.AsyncClient, db: Database, tenant: Tenant, encrypted: dict[str, Any]
) -> None:
    before = await audit.read(db, tenant.organisation_id)
    answer = await api.post("/codec/decode", json=encrypted, headers=tenant.headers)
    assert answer.status_code == 200
    assert str(tenant.key_id) in _text(answer)
    entries = (await audit.read(db, tenant.organisation_id))[len(before) :]
    assert [(entry.action, entry.actor) for entry in entries] == [
        ("payload.decoded", f"ol_{tenant.key_id.hex}")
    ]


async def test_another_tenants_payloads_are_refused(
    api: httpx2.AsyncClient, other_tenant: Tenant, encrypted: dict[str, Any]
) -> None:
    for extra in ({}, {"X-Namespace": "other"}):
        answer = await api.post(
            "/codec/decode", json=encrypted, headers=other_tenant.headers | extra
        )
        assert (answer.status_code, answer.json()["code"]) == (403, "OVL-2003")


async def test_a_payload_relabelled_as_ones_own_does_not_decrypt(
    api: httpx2.AsyncClient, tenant: Tenant, other_tenant: Tenant, encrypted: dict[str, Any]
) -> None:
    own = (await api.post("/v1/tasks", json=HELLO, headers=other_tenant.headers)).json()
    metadata = encrypted["payloads"][0]["metadata"]
    metadata["workflow-id"] = base64.b64encode(f"task-{own['id']}".encode()).decode()
    answer = await api.post("/codec/decode", json=encrypted, headers=other_tenant.headers)
    assert answer.status_code == 422


async def test_without_a_key_or_with_a_wrong_capability_nothing_is_read(
    api: httpx2.AsyncClient, encrypted: dict[str, Any]
) -> None:
    for path in ("/codec/decode", "/codec/wrong/decode", f"/codec/{CAPABILITY[:-1]}/decode"):
        answer = await api.post(path, json=encrypted)
        assert answer.status_code == 401
        assert CAPABILITY not in answer.text


async def test_the_web_ui_reads_with_the_capability_from_its_own_origin_only(
    api: httpx2.AsyncClient, tenant: Tenant, encrypted: dict[str, Any]
) -> None:
    path = f"/codec/{CAPABILITY}/decode"
    asked = await api.options(path, headers={"Origin": UI, "Access-Control-Request-Method": "POST"})
    assert asked.headers["access-control-allow-origin"] == UI
    assert "X-Namespace" in asked.headers["access-control-allow-headers"]
    answer = await api.post(path, json=encrypted, headers={"Origin": UI})
    assert answer.headers["access-control-allow-origin"] == UI
    assert str(tenant.key_id) in _text(answer)
    for origin in ("http://evil.example", "null", "http://127.0.0.1:82330", UI + ".evil"):
        for answer in (
            await api.options(path, headers={"Origin": origin}),
            await api.post(path, json=encrypted, headers={"Origin": origin}),
        ):
            assert "access-control-allow-origin" not in answer.headers
    # Nowhere else are pages of other origins let in.
    other = await api.get("/v1/tasks", headers=tenant.headers | {"Origin": UI})
    assert "access-control-allow-origin" not in other.headers


async def test_refusals_can_be_read_by_the_web_ui_too(api: httpx2.AsyncClient) -> None:
    answer = await api.post("/codec/wrong/decode", json={"payloads": []}, headers={"Origin": UI})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == UI


@pytest.mark.parametrize(
    "payload",
    [
        {"metadata": {"encoding": "anNvbi9wbGFpbg=="}, "data": "e30="},
        {"metadata": {}, "data": ""},
        {"metadata": {"encoding": "!!"}, "data": "!!"},
    ],
)
async def test_what_is_not_ours_is_refused_by_key_and_passed_by_capability(
    api: httpx2.AsyncClient, tenant: Tenant, payload: dict[str, Any]
) -> None:
    by_key = await api.post("/codec/decode", json={"payloads": [payload]}, headers=tenant.headers)
    assert by_key.status_code in (403, 422)
    passed = await api.post(f"/codec/{CAPABILITY}/decode", json={"payloads": [payload]})
    if passed.status_code == 200:
        assert passed.json()["payloads"] == [payload]
    else:
        assert passed.status_code == 422


async def test_a_changed_bit_is_refused(api: httpx2.AsyncClient, encrypted: dict[str, Any]) -> None:
    data = bytearray(base64.b64decode(encrypted["payloads"][0]["data"]))
    data[-1] ^= 1
    encrypted["payloads"][0]["data"] = base64.b64encode(bytes(data)).decode()
    answer = await api.post(f"/codec/{CAPABILITY}/decode", json=encrypted)
    assert answer.status_code == 422


async def test_encode_and_decode_are_inverse(
    api: httpx2.AsyncClient, settings: Settings, tenant: Tenant
) -> None:
    clear = {"payloads": [{"metadata": {"encoding": "anNvbi9wbGFpbg=="}, "data": "e30="}]}
    sealed = (await api.post(f"/codec/{CAPABILITY}/encode", json=clear)).json()
    assert sealed["payloads"][0]["data"] != "e30="
    opened = await api.post(f"/codec/{CAPABILITY}/decode", json=sealed)
    assert opened.json() == clear
    by_key = await api.post("/codec/encode", json=clear, headers=tenant.headers)
    ring = KeyRing.parse(settings.payload_keys.get_secret_value())
    facts = by_key.json()["payloads"][0]
    proto = Payload(
        metadata={name: base64.b64decode(value) for name, value in facts["metadata"].items()},
        data=base64.b64decode(facts["data"]),
    )
    assert EncryptionCodec(ring, settings.temporal_namespace).decrypt(proto).data == b"{}"
