"""What a policy's document may say."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from safety.policy import Policy


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"kind": "deny_list", "action": "block"}, "words or patterns"),
        ({"kind": "deny_list", "action": "block", "words": ["  "]}, "more than blanks"),
        ({"kind": "deny_list", "action": "block", "patterns": ["a*"]}, "empty text"),
        ({"kind": "deny_list", "action": "block", "patterns": [r"(a)\1"]}, "RE2"),
        ({"kind": "deny_list", "action": "block", "patterns": ["(?=a)"]}, "RE2"),
        ({"kind": "deny_list", "action": "block", "patterns": ["(((a{99}){99}){99})"]}, "RE2"),
        ({"kind": "deny_list", "action": "block", "words": ["x"], "types": ["US_SSN"]}, "'types'"),
        ({"kind": "allow_list", "action": "flag", "words": ["x"]}, "allow"),
        ({"kind": "pii", "action": "redact", "regions": ["XX"]}, "region"),
        ({"kind": "pii", "action": "redact", "types": ["PERSON"]}, "EMAIL_ADDRESS"),
        ({"kind": "pii", "action": "redact", "on": []}, "at least 1"),
        ({"kind": "pii", "action": "redact", "on": ["outside"]}, "tool_result"),
        ({"kind": "moderation", "action": "block"}, "model"),
        ({"kind": "moderation", "action": "redact", "model": "m"}, "redact"),
        ({"kind": "prompt_injection", "action": "block", "threshold": 2}, "less than"),
        ({"kind": "secrets"}, "required"),
        ({"kind": "secrets", "action": "block", "more": 1}, "not permitted"),
    ],
)
def test_what_a_rule_cannot_be(rule: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Policy.of({"rules": [{"id": "it", **rule}]})


def test_ids_are_unique() -> None:
    rule = {"id": "a", "kind": "pii", "action": "flag"}
    with pytest.raises(ValidationError, match="'a'"):
        Policy.of({"rules": [rule, rule]})


def test_a_document_says_what_it_said_and_equal_policies_have_one_digest() -> None:
    document = {
        "hold_back": 10,
        "rules": [{"id": "a", "kind": "pii", "action": "flag", "on": ["input"]}],
    }
    policy = Policy.of(document)
    assert policy.document() == document
    assert Policy.of(policy.document()) == policy
    assert Policy.of({**document, "mode": "enforce"}).digest == policy.digest
    assert Policy.of({**document, "mode": "dry_run"}).digest != policy.digest


def test_all_rules_together_have_so_many_patterns() -> None:
    """They are compiled by the process that is asked to set them."""
    rule = {"kind": "deny_list", "action": "flag", "patterns": [f"a{n}" for n in range(60)]}
    Policy.of({"rules": [{"id": "a", **rule}]})
    with pytest.raises(ValidationError, match="100 patterns"):
        Policy.of({"rules": [{"id": "a", **rule}, {"id": "b", **rule}]})
    large = {"id": "a", "kind": "deny_list", "action": "flag", "patterns": [r"(?:\pL\pL?){60}"]}
    with pytest.raises(ValidationError, match="too large"):
        Policy.of({"rules": [large]})
