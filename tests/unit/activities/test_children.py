"""What a sub-agent is asked, and why it is not."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from activities.children import child_request, why_not
from store.refusals import Refusal
from workflows.child_contracts import AskInput
from workflows.contracts import TaskRequest, Tenant, ToolCall, ToolInput

ID = UUID(int=1)


def _asked(**left: Any) -> AskInput:
    call = ToolInput(
        tenant=Tenant(organisation_id=ID, team_id=ID, key_id=ID),
        task_id=ID,
        step=1,
        call_key="k",
        call_id="c",
        tool_call=ToolCall(name="agent.a", arguments={"input": "?"}),
        collections=(),
    )
    return AskInput(call=call, **left)


def _template(**limits: Any) -> dict[str, Any]:
    request = TaskRequest.model_validate({"input": "?", "agent": "a@1", "limits": limits})
    return request.model_dump(mode="json", exclude={"input", "messages"})


@pytest.mark.parametrize(
    ("own", "left", "tokens", "seconds"),
    [
        ({}, {}, None, None),
        ({"max_tokens": 50}, {}, 50, None),
        ({}, {"tokens_left": 7, "seconds_left": 9}, 7, 9),
        ({"max_tokens": 50, "deadline_seconds": 5}, {"tokens_left": 7, "seconds_left": 9}, 7, 5),
    ],
)
def test_a_child_has_what_its_parent_has_left(
    own: dict[str, Any], left: dict[str, Any], tokens: int | None, seconds: int | None
) -> None:
    request = child_request(_template(**own), _asked(**left), "What?")
    assert (request.input, request.agent) == ("What?", "a@1")
    assert (request.limits.max_tokens, request.limits.deadline_seconds) == (tokens, seconds)


def test_whose_turn_it_is_is_the_parents() -> None:
    assert child_request(_template(), _asked(priority="batch"), "?").priority == "batch"


@pytest.mark.parametrize(
    ("code", "scope", "words"),
    [
        ("budget_exceeded", "parent", "of the parent's budget of $2 $1 is spent"),
        ("too_deep", "parent", "nested too deep"),
        ("task_failed", "parent", "the task is failed"),
        ("key_expired", "key", "the key is expired"),
    ],
)
def test_a_refusal_in_words(code: str, scope: str, words: str) -> None:
    refusal = Refusal(code, scope, Decimal(2), Decimal(1), Decimal(0), Decimal(3))
    assert words in why_not(refusal)
