"""What is in JSON text, wherever it hides, and that it stays JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safety.json_text import leaves_of, with_leaves
from safety.policy import Policy
from safety.redactions import Redactions
from safety.screen import Screen

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


def screen(**fields: Any) -> Screen:
    rules = [
        {"id": "mail", "kind": "pii", "types": ["EMAIL_ADDRESS", "CREDIT_CARD"], "action": "redact"}
    ]
    return Screen(Policy.of({"rules": rules, **fields}), Redactions())


@given(VALUES, st.booleans())
def test_what_does_not_change_is_what_it_was_and_what_does_is_json(
    value: Any, ascii_only: bool
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert with_leaves(text, lambda leaf: leaf) == text
    json.loads(with_leaves(text, lambda leaf: leaf + '"\\x'))


@pytest.mark.parametrize(
    ("text", "leaves"),
    [
        ('{"a": {"b": ["c"]}}', ["a", "b", "c"]),
        ('{"a": 1, "a": "two"}', ["a", "1", "a", "two"]),
        (
            "[4111.0, 41e2, 0.5, -7, true, null, 1e999999]",
            ["4111", "4100", "0.5", "-7", "1e999999"],
        ),
        ('"\\u0062ob\\n\\"x\\""', ['bob\n"x"']),
        ("plain 12 words", ["plain 12 words"]),
        ('{"a": "bob\\u0040x.org', ["a", "bob@x.org"]),
        ('{"a": "cut \\u00', ["a", "cut "]),
        ('see "\\u0062ob" or ann\\x', ["see ", "bob", " or ann\\x"]),
        ('{"a": "no \\q such \\u0062"}', ["a", "no q such b"]),
    ],
)
def test_every_leaf_is_found(text: str, leaves: list[str]) -> None:
    assert leaves_of(text) == leaves
    assert with_leaves(text, lambda leaf: leaf) == text


@pytest.mark.parametrize("depth", [600, 50_000])
def test_no_depth_is_too_deep(depth: int) -> None:
    deep = '{"a":[' * depth + '"bob\\u0040example.com", 4111111111111111' + "]}" * depth
    verdict = screen().check_json(deep, "output")
    assert verdict.outcome == "redact"
    assert '["[EMAIL_ADDRESS]"' in verdict.texts[0]
    assert "[CREDIT_CARD]" in verdict.texts[0]


def test_what_is_a_number_or_stands_there_twice_is_screened_and_nothing_is_lost() -> None:
    text = (
        '{"card": 4111111111111111, "to": "bob@example.com", "to": "no", "n": 4.111111111111111e15}'
    )
    assert json.loads(screen().check_json(text, "output").texts[0]) == {
        "card": "[CREDIT_CARD]",
        "to": "no",
        "n": "[CREDIT_CARD]",
    }
    assert "bob@" not in screen().check_json(text, "output").texts[0]
    names = '{"bob@example.com": 1, "ann@example.com": {"bob@example.com": 2}}'
    assert json.loads(screen().check_json(names, "output").texts[0]) == {
        "[EMAIL_ADDRESS]": 1,
        "[EMAIL_ADDRESS]_2": {"[EMAIL_ADDRESS]": 2},
    }
    half = screen().check_json('"bob@example.com \\ud83d"', "output").texts[0]
    assert half.encode()
    assert json.loads(half) == "[EMAIL_ADDRESS] \ud83d"
