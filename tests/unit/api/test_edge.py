"""The last net: an id on every answer, and no exception text anywhere."""

from __future__ import annotations

import json
import logging

import pytest
from starlette.types import Message, Receive, Scope, Send

from api.edge import Edge

CANARY = "canary-7f3a my secret prompt"


async def _run(app: object) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {"type": "http", "method": "GET", "path": f"/{CANARY}", "headers": []}
    await Edge(app)(scope, receive, send)  # type: ignore[arg-type]
    return sent


async def _fails(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError(CANARY)


async def _fails_half_way(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
    raise ValueError(CANARY)


async def test_an_unknown_exception_is_a_500_that_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    sent = await _run(_fails)
    headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    problem = json.loads(sent[1]["body"])
    assert sent[0]["status"] == 500
    assert headers["content-type"] == "application/problem+json"
    assert problem["request_id"] == headers["x-request-id"]
    assert problem["code"] == "OVL-5000"
    assert CANARY not in json.dumps(problem)
    logged = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert "ValueError" in logged
    assert "test_edge.py" in logged
    assert CANARY not in logged


async def test_an_answer_that_began_is_cut_and_not_completed() -> None:
    sent = await _run(_fails_half_way)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[-1]["more_body"] is True
