"""What makes a request the repetition of an earlier one."""

from __future__ import annotations

from typing import Any

from api.submission import digest_of_request, essence_of
from workflows.contracts import TaskRequest


def digest(**limits: Any) -> str:
    return digest_of_request(essence_of(TaskRequest(input="What?", limits=limits)))


def test_a_repetition_is_known_whatever_the_default_was_when_it_was_first_sent() -> None:
    # As it was filed while `on_budget` was `fail` unless said.
    assert digest(max_steps=3) == digest(max_steps=3, on_budget="fail")
    assert digest(max_steps=3) != digest(max_steps=3, on_budget="wait")
    assert digest(max_steps=3) != digest(max_steps=4)
