"""The event stream: in order, as it happens, without gap or repeat over every interruption."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from uuid_utils.compat import uuid7

from settings import Settings
from store.database import Database
from tests.integration.api.conftest import Tenant, serving
from tests.integration.api.played import PlayedTask

WORDS = [f"word{number} " for number in range(40)]


async def _stream(
    api: httpx2.AsyncClient, task: PlayedTask, tenant: Tenant, after: str | None = None
) -> AsyncIterator[tuple[str, str, dict[str, Any]]]:
    headers = tenant.headers | ({"Last-Event-ID": after} if after else {})
    async with api.sse(f"/v1/tasks/{task.id}/events", headers=headers) as source:
        assert source.response.status_code == 200
        assert source.response.headers["content-type"].startswith("text/event-stream")
        async for event in source:
            if event.data:
                yield event.id, event.event, json.loads(event.data)


async def test_events_come_in_order_to_the_last_and_the_stream_ends(
    api: httpx2.AsyncClient, db: Database, tenant: Tenant
) -> None:
    task = await (await PlayedTask(db, tenant).accept()).begin()

    async def play() -> None:
        for word in WORDS:
            await task.say(word)
            await asyncio.sleep(0.005)
        await task.end()

    playing = asyncio.create_task(play())
    seen = [event async for event in _stream(api, task, tenant)]
    await playing
    assert [data["seq"] for _, _, data in seen] == list(range(1, len(seen) + 1))
    assert all(id_ == f"{data['step']}:{data['seq']}" for id_, _, data in seen)
    kinds = [kind for _, kind, _ in seen]
    assert kinds[:2] == ["task.accepted", "step.started"]
    assert kinds[-2:] == ["step.completed", "task.succeeded"]
    said = [data["payload"]["text"] for _, kind, data in seen if kind == "text"]
    assert "".join(said) == "".join(WORDS)


@pytest.mark.parametrize("cut", [1, 2, 7, 41, 43])
async def test_a_reader_resumes_where_it_was_cut(
    api: httpx2.AsyncClient, db: Database, tenant: Tenant, cut: int
) -> None:
    task = await (await PlayedTask(db, tenant).accept()).begin()
    for word in WORDS:
        await task.say(word)
    await task.end()
    whole = [event async for event in _stream(api, task, tenant)]
    assert len(whole) == len(WORDS) + 4
    head = whole[:cut]
    tail = [event async for event in _stream(api, task, tenant, after=head[-1][0])]
    assert head + tail == whole


async def test_after_the_last_event_there_is_nothing_and_the_stream_ends(
    api: httpx2.AsyncClient, db: Database, tenant: Tenant
) -> None:
    task = await (await PlayedTask(db, tenant).accept()).begin()
    await task.end()
    whole = [event async for event in _stream(api, task, tenant)]
    async with asyncio.timeout(3):
        assert [e async for e in _stream(api, task, tenant, after=whole[-1][0])] == []


async def test_a_token_is_at_the_reader_soon(
    api: httpx2.AsyncClient, db: Database, tenant: Tenant
) -> None:
    """Woken by the database, not by a poll: far sooner than the safety poll's five seconds."""
    task = await (await PlayedTask(db, tenant).accept()).begin()
    waits: list[float] = []
    said_at = 0.0
    stream = _stream(api, task, tenant)
    for _ in range(2):
        await anext(stream)
    for word in WORDS[:10]:
        await asyncio.sleep(0.02)
        said_at = time.perf_counter()
        await task.say(word)
        await anext(stream)
        waits.append(time.perf_counter() - said_at)
    await stream.aclose()  # type: ignore[attr-defined]
    assert sorted(waits)[len(waits) // 2] < 0.25


async def test_an_unknown_or_foreign_task_is_a_404_before_any_stream(
    api: httpx2.AsyncClient, db: Database, tenant: Tenant, other_tenant: Tenant
) -> None:
    task = await PlayedTask(db, tenant).accept()
    answers = []
    for task_id in (task.id, uuid7()):
        response = await api.get(f"/v1/tasks/{task_id}/events", headers=other_tenant.headers)
        answers.append((response.status_code, response.json() | {"request_id": ""}))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


@pytest.mark.parametrize("bad", ["x", "1", "1:2:3", "1:-1", "9" * 30 + ":1", "1:\xb2"])
async def test_a_bad_last_event_id_is_a_422(
    api: httpx2.AsyncClient, db: Database, tenant: Tenant, bad: str
) -> None:
    task = await PlayedTask(db, tenant).accept()
    response = await api.get(
        f"/v1/tasks/{task.id}/events",
        headers=[*tenant.headers.items(), (b"Last-Event-ID", bad.encode("latin-1"))],
    )
    assert response.status_code == 422
    assert response.json()["errors"][0]["in"] == "header"


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("unknown", ["0:999999", "7:3", "1:1"])
async def test_a_cursor_that_is_not_this_streams_gets_an_explicit_gap_and_all_of_it(
    api: httpx2.AsyncClient, db: Database, tenant: Tenant, unknown: str, finished: bool
) -> None:
    """An unknown cursor neither waits for ever nor passes over events in silence."""
    task = await (await PlayedTask(db, tenant).accept()).begin()
    for word in WORDS[:3]:
        await task.say(word)
    if finished:
        await task.end()
    came: list[tuple[str, str, dict[str, Any]]] = []
    async with asyncio.timeout(10):
        async for event in _stream(api, task, tenant, after=unknown):
            came.append(event)
            if event[2]["seq"] == 3 and not finished:
                await task.end()
    (id_, kind, data), *rest = came
    assert (id_, kind, data["seq"], data["payload"]) == ("0:0", "gap", 0, {"unknown": unknown})
    assert [event[2]["seq"] for event in rest] == list(range(1, len(rest) + 1))
    assert rest[-1][1] == "task.succeeded"
    # The gap's own id is a place, too: the beginning.
    assert [event async for event in _stream(api, task, tenant, after="0:0")] == rest


async def test_a_stopping_process_lets_its_readers_go(
    settings: Settings, db: Database, tenant: Tenant
) -> None:
    task = await (await PlayedTask(db, tenant).accept()).begin()
    ended = asyncio.Event()

    async def read(client: httpx2.AsyncClient) -> None:
        async for _ in _stream(client, task, tenant):
            pass
        ended.set()

    async with serving(settings) as client:
        reading = asyncio.create_task(read(client))
        await asyncio.sleep(0.5)
        stopped_at = time.perf_counter()
    await reading
    assert ended.is_set()
    assert time.perf_counter() - stopped_at < 4


async def test_a_silent_stream_shows_that_it_lives(
    api: httpx2.AsyncClient,
    db: Database,
    tenant: Tenant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastapi.routing._PING_INTERVAL", 0.2)
    task = await (await PlayedTask(db, tenant).accept()).begin()
    lines: list[str] = []
    async with (
        api.stream("GET", f"/v1/tasks/{task.id}/events", headers=tenant.headers) as response,
        asyncio.timeout(5),
    ):
        async for line in response.aiter_lines():
            lines.append(line)
            if lines.count(": ping") >= 3:
                break
    assert ": open" in lines
    assert "retry: 500" in lines
