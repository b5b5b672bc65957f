"""Lines of batches: looked at one by one, and what becomes of one whose call failed."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from activities.batches.validation import MOST_ERRORS, Checked, Checker
from activities.batches.verdicts import MOST_STRIKES, Again, verdict
from api.openai.lines import LineSurface
from inference.errors import (
    EngineBusy,
    EngineDenied,
    EngineFailed,
    EngineUnavailable,
    RequestRefused,
    Told,
)
from store.catalogue import Catalogue, Deployment, Model, Price
from store.errors import Fenced
from workflows.errors import (
    BudgetExceeded,
    Conflict,
    Internal,
    InvalidRequest,
    RateLimited,
    SafetyUnavailable,
)

CHAT = "/v1/chat/completions"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
PRICE = (Decimal(1), Decimal(1), Decimal(1), LONG_AGO)
CATALOGUE = Catalogue(
    models={
        "ours": Model("ours", "1", 4096, 512, ("chat", "completion"), "t", "-"),
        "vectors": Model("vectors", "1", 256, 0, ("embedding",), "t", "-"),
    },
    deployments={
        "a": Deployment("a", "ours", "scripted", ("h:1",), "ours", True, "slow", 2),
        "b": Deployment("b", "vectors", "onnx", ("h:1",), "vectors"),
    },
    prices={"ours": Price("ours", *PRICE), "vectors": Price("vectors", *PRICE)},
    routes={},
    digest="d",
)


def line(custom_id: Any = "a", **fields: Any) -> dict[str, Any]:
    body = {"model": "ours", "messages": [{"role": "user", "content": "hi"}]}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | fields


def body(**fields: Any) -> dict[str, Any]:
    return line()["body"] | fields


async def checked(*pieces: bytes, endpoint: str = CHAT) -> Checked:
    checker = Checker(LineSurface(), CATALOGUE, endpoint=endpoint, most_bytes=10_000)
    for piece in pieces:
        await checker.take(piece)
    return checker.checked


async def test_lines_know_where_they_stand_and_whose_engines_they_wait_for() -> None:
    first, second = (json.dumps(line(name)).encode() for name in ("a", "b"))
    found = await checked(b"\n" + first + b"\r\n\n", second)
    assert not found.errors
    assert [(each.line, each.custom_id, each.part, each.start) for each in found.lines] == [
        (2, "a", 0, 1),
        (4, "b", 1, 0),
    ]
    assert found.lines[1].size == len(second)
    assert [line.deployment_class for line in found.lines] == ["slow", "slow"]


async def test_a_mark_of_utf_8_before_the_first_line_is_no_part_of_it() -> None:
    only = json.dumps(line()).encode()
    (found,) = (await checked(BOM_UTF8 + only)).lines
    assert (found.line, found.start, found.size) == (1, len(BOM_UTF8), len(only))
    assert (await checked(BOM_UTF8 + b"\n" + only)).lines[0].line == 2
    # Anywhere else it is.
    assert (await checked(b"\n" + BOM_UTF8 + only)).errors[0]["line"] == 2


WRONG: list[tuple[Any, str, str | None]] = [
    (b"{", "invalid_json_line", None),
    (b"[1]", "invalid_json_line", None),
    (b"\xff", "invalid_json_line", None),
    (b'{"a":' + b"[" * 5_000, "invalid_json_line", None),
    (b" " + b'"' + b"x" * 10_001 + b'"', "line_too_long", None),
    ({"method": "POST"}, "missing_required_parameter", "custom_id"),
    (line(7), "invalid_value", "custom_id"),
    (line(""), "invalid_value", "custom_id"),
    (line("a\x00b"), "invalid_value", "custom_id"),
    (line("x" * 513), "invalid_value", "custom_id"),
    (line(method="GET"), "invalid_method", "method"),
    (line(url="/v1/embeddings"), "mismatched_endpoint", "url"),
    (line(extra=1), "unknown_parameter", "extra"),
    (line(body=[]), "invalid_type", "body"),
    (line(body=body(messages=[])), "empty_array", "body.messages"),
    (line(body=body(stream=True)), "unsupported_parameter", "body.stream"),
    (line(body=body(model="nobody")), "model_not_found", "body.model"),
    (line(body=body(n=2)), "unsupported_parameter", "body.n"),
    (line(body=body(user="\ud800")), "lone_surrogate", "body"),
]


@pytest.mark.parametrize(("wrong", "code", "param"), WRONG)
async def test_a_line_that_cannot_be_made_is_said_by_its_number(
    wrong: Any, code: str, param: str | None
) -> None:
    raw = wrong if isinstance(wrong, bytes) else json.dumps(wrong).encode()
    found = await checked(json.dumps(line("good")).encode() + b"\n" + raw)
    (error,) = found.errors
    assert (error["code"], error["line"]) == (code, 2)
    assert error["param"] == param


async def test_a_name_is_one_lines_only_and_what_is_wrong_is_said_up_to_a_hundred_times() -> None:
    twice = json.dumps(line("a")).encode()
    found = await checked(twice + b"\n" + twice)
    assert found.errors[0]["code"] == "duplicate_custom_id"
    assert "line 1" in found.errors[0]["message"]
    assert len((await checked(b"no\n" * 500)).errors) == MOST_ERRORS


async def test_every_endpoint_reads_its_lines() -> None:
    for endpoint, asked in (
        ("/v1/completions", {"model": "ours", "prompt": "Once"}),
        ("/v1/responses", {"model": "ours", "input": "hi"}),
        ("/v1/embeddings", {"model": "vectors", "input": ["a", "b"]}),
    ):
        raw = json.dumps(line(url=endpoint, body=asked)).encode()
        found = await checked(raw, endpoint=endpoint)
        assert not found.errors, endpoint
        assert [line.deployment_class for line in found.lines] == [
            "" if "embed" in endpoint else "slow"
        ]
    going_on = {"model": "ours", "input": "hi", "previous_response_id": "resp_1"}
    raw = json.dumps(line(url="/v1/responses", body=going_on)).encode()
    (error,) = (await checked(raw, endpoint="/v1/responses")).errors
    assert error["param"] == "body.previous_response_id"
    # What its engine cannot is told by the names of the endpoint.
    thinking = {"model": "ours", "input": "hi", "reasoning": {"effort": "high"}}
    raw = json.dumps(line(url="/v1/responses", body=thinking)).encode()
    (error,) = (await checked(raw, endpoint="/v1/responses")).errors
    assert error["param"] == "body.reasoning.effort"


def _sent(error: EngineUnavailable) -> EngineUnavailable:
    error.sent = True
    return error


def after(error: Exception, **facts: Any) -> Again | None:
    return verdict(error, **({"tries": 0, "strikes": 0, "on_budget": "fail"} | facts))


def test_a_limit_is_waited_for_as_long_as_it_says_and_one_no_call_fits_is_not() -> None:
    limited = after(RateLimited("no", scope="key", retry_after_s=7, never=0))
    assert limited is not None
    assert (limited.after_s, limited.tried, limited.everybody) == (7, False, True)
    assert after(RateLimited("no", scope="key", retry_after_s=7, never=1)) is None


def test_a_spent_budget_is_the_lines_end_unless_it_is_waited_for() -> None:
    assert after(BudgetExceeded("spent")) is None
    waits = after(BudgetExceeded("spent"), on_budget="wait")
    assert waits is not None
    assert waits.everybody


def test_an_engine_that_is_away_is_waited_for_longer_each_time_and_never_given_up() -> None:
    waits = [after(EngineUnavailable("x", "not_ready"), tries=n) for n in (0, 3, 500)]
    assert [wait and (wait.after_s, wait.tried, wait.strike) for wait in waits] == [
        (1, True, False),
        (8, True, False),
        (60, True, False),
    ]
    unjudged = after(SafetyUnavailable("cannot be judged now"))
    assert unjudged is not None
    assert not unjudged.tried
    busy = after(EngineBusy("later", "busy", Told(retry_after_s=9)))
    assert busy is not None
    assert busy.after_s == 9


@pytest.mark.parametrize(
    "error",
    [
        EngineFailed("broke"),
        EngineUnavailable("silent", "idle_timeout"),
        _sent(EngineUnavailable("cut", "connection_lost")),
        Internal("failed", code="earlier_request_failed"),
        ValueError("a defect"),
    ],
)
def test_what_the_request_may_be_at_fault_for_is_tried_three_times(error: Exception) -> None:
    first = after(error)
    assert first is not None
    assert (first.tried, first.strike, first.everybody) == (True, True, False)
    assert after(error, strikes=MOST_STRIKES - 1) is None


def test_a_call_that_is_made_elsewhere_is_looked_at_again_and_not_made_anew() -> None:
    for error in (Conflict("in use", code="idempotency_key_in_use"), Fenced("taken over")):
        again = after(error)
        assert again is not None
        assert not again.tried


@pytest.mark.parametrize(
    "error", [InvalidRequest("no"), EngineDenied("key"), RequestRefused("bad")]
)
def test_what_another_try_cannot_mend_is_the_end(error: Exception) -> None:
    assert after(error) is None
