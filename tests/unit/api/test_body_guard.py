"""The guard in front of every route: what it refuses, with which words, having read how much."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from api.body_guard import BodyGuard, field_problems_of
from api.edge import Edge

LIMIT = 10_000


class Inner:
    """Stands for the routes: remembers what got through."""

    def __init__(self) -> None:
        self.body: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        self.body = message["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


class Wire:
    """One request over bare ASGI, in pieces of our own choice."""

    def __init__(
        self, *pieces: bytes, content_type: str = "application/json", **scope: Any
    ) -> None:
        self.pieces = list(pieces)
        self.taken = 0
        self.sent: list[Message] = []
        self.scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/tasks",
            "query_string": b"",
            "headers": [(b"content-type", content_type.encode())],
            **scope,
        }

    async def receive(self) -> Message:
        self.taken += 1
        body = self.pieces.pop(0) if self.pieces else b""
        return {"type": "http.request", "body": body, "more_body": bool(self.pieces)}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def run(self) -> tuple[int, dict[str, Any], Inner]:
        inner = Inner()
        await Edge(BodyGuard(inner, LIMIT))(self.scope, self.receive, self.send)
        body = b"".join(message.get("body", b"") for message in self.sent[1:])
        document = json.loads(body) if body.startswith(b"{") else {}
        return self.sent[0]["status"], document, inner


async def test_a_good_body_passes_unchanged() -> None:
    body = json.dumps({"input": "grüß dich 👋"}).encode()
    status, _, inner = await Wire(body[:5], body[5:]).run()
    assert status == 200
    assert inner.body == body


async def test_a_declared_size_is_refused() -> None:
    wire = Wire(b"x" * LIMIT, b"x")
    wire.scope["headers"].append((b"content-length", str(LIMIT + 1).encode()))
    status, problem, inner = await wire.run()
    assert (status, problem["code"]) == (413, "OVL-1003")
    assert inner.body is None


async def test_an_undeclared_size_is_refused_and_not_kept() -> None:
    piece = b"x" * 1_000_000
    wire = Wire(*[piece] * 1000)
    tracemalloc.start()
    status, problem, inner = await wire.run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert status == 413
    assert problem["errors"][0]["pointer"] == ""
    # It goes on reading for a while, so that the client gets to see the answer; not for ever.
    assert 2 < wire.taken < 100
    assert peak < 2_000_000
    assert inner.body is None


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "malformed_json"),
        (b'{"input": "a\x00b"}', "malformed_json"),
        (b'{"x": NaN}', "malformed_json"),
        (b"\xff\xfe", "not_utf8"),
        (b"[" * 9_000, "too_deep"),
        (b'{"x": ' + b"9" * 5_000 + b"}", "malformed_json"),
    ],
)
async def test_what_is_not_json_is_a_400(body: bytes, code: str) -> None:
    status, problem, inner = await Wire(body).run()
    assert status == 400
    assert problem["errors"][0]["code"] == code
    assert inner.body is None


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        (rb'{"input": "a\u0000b"}', "/input", "nul_character"),
        (rb'{"messages": [{"content": "\ud800"}]}', "/messages/0/content", "lone_surrogate"),
        (rb'{"tags": {"a/\u0000~": "x"}}', "/tags/a~1?~0", "nul_character"),
        (rb'{"sampling": {"top_p": 1e999}}', "/sampling/top_p", "not_finite"),
        (b'{"x": ' + b"[" * 100 + b"]" * 100 + b"}", "/x" + "/0" * 64, "too_deep"),
    ],
)
async def test_what_cannot_be_stored_is_a_422_with_its_pointer(
    body: bytes, pointer: str, code: str
) -> None:
    status, problem, inner = await Wire(body).run()
    assert status == 422
    assert [(e["in"], e["pointer"], e["code"]) for e in problem["errors"]] == [
        ("body", pointer, code)
    ]
    assert inner.body is None


async def test_another_media_type_is_a_415() -> None:
    status, problem, _ = await Wire(b"a=b", content_type="application/x-www-form-urlencoded").run()
    assert (status, problem["code"]) == (415, "OVL-1002")


@pytest.mark.parametrize(
    ("path", "query", "where"), [("/v1/\x00", b"", "path"), ("/v1/tasks", b"a=%00", "query")]
)
async def test_nul_in_the_url_is_a_422(path: str, query: bytes, where: str) -> None:
    status, problem, _ = await Wire(b"", path=path, query_string=query, method="GET").run()
    assert status == 422
    assert problem["errors"][0]["in"] == where


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_what_passes_can_be_stored(document: Any) -> None:
    if not list(field_problems_of(document)):
        text = json.dumps(document, allow_nan=False, ensure_ascii=False)
        assert "\x00" not in text
        assert "\\u0000" not in text or "\\\\u0000" in text
        text.encode("utf-8")
