"""What is said about invalid input: a pointer and our own words, never the input."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from api.invalid_input import field_problems
from api.problems import FieldProblem
from workflows.contracts import TaskRequest

CANARY = "canary-7f3a"


def _problems(document: Any) -> tuple[FieldProblem, ...]:
    with pytest.raises(ValidationError) as caught:
        TaskRequest.model_validate_json(json.dumps(document), strict=True)
    errors = caught.value.errors(include_url=False, include_input=False)
    return field_problems([{**error, "loc": ("body", *error["loc"])} for error in errors])


@pytest.mark.parametrize(
    ("document", "pointer", "code"),
    [
        ({}, "", "contradiction"),
        ({"input": "a", "messages": [{"role": "user", "content": "b"}]}, "", "contradiction"),
        ({"input": ""}, "/input", "too_short"),
        ({"input": 5}, "/input", "wrong_type"),
        ({"input": "a", "inputs": "b"}, "/inputs", "unknown_field"),
        ({"input": "a", "sampling": {"max_tokens": "12"}}, "/sampling/max_tokens", "wrong_type"),
        ({"input": "a", "sampling": {"max_tokens": 0}}, "/sampling/max_tokens", "too_small"),
        ({"input": "a", "tools": [{"name": "r m"}]}, "/tools/0/name", "wrong_form"),
        ({"input": "a", "tools": "calculator"}, "/tools", "wrong_type"),
        ({"input": "a", "cache": True}, "/cache", "not_allowed"),
        ({"messages": [{"role": "user"}]}, "/messages/0/content", "missing"),
        ({"input": "a", "limits": {"max_cost_usd": -1}}, "/limits/max_cost_usd", "too_small"),
        ({"input": "a", "tags": {"t": 1}}, "/tags/t", "wrong_type"),
    ],
)
def test_every_mismatch_points_at_its_field(document: Any, pointer: str, code: str) -> None:
    assert (pointer, code) in [(p.pointer, p.code) for p in _problems(document)]


@pytest.mark.parametrize(
    "document",
    [
        {"input": {CANARY: CANARY}},
        {"input": "a", "route": [CANARY]},
        {"input": "a", "cache": CANARY},
        {"input": "a", "tools": [{"name": f"{CANARY} {CANARY}"}]},
        {"input": "a", "limits": {"max_cost_usd": CANARY}},
        {"input": "a", "sampling": {"seed": CANARY, "stop": CANARY}},
        {"messages": [{"role": CANARY, "content": [CANARY]}]},
    ],
)
def test_the_input_is_never_repeated(document: Any) -> None:
    said = json.dumps([p.model_dump() for p in _problems(document)])
    assert CANARY not in said.replace(f"/{CANARY}", "")


@given(st.text(min_size=1), st.text(min_size=1))
def test_pointers_are_short_and_can_be_sent(field: str, inner: str) -> None:
    problems = field_problems([{"type": "extra_forbidden", "loc": ("body", field, inner)}])
    pointer = problems[0].pointer
    pointer.encode("utf-8")
    assert pointer.count("/") == 2
    assert len(pointer) <= 2 * (2 * 81 + 1)
