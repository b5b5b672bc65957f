"""What a caller may ask, and the digests that stand for a conversation."""

import pytest
from pydantic import ValidationError

from workflows.contracts import Message, TaskRequest
from workflows.errors import ALL_ERRORS
from workflows.transcript import extend, start


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": "a", "messages": [{"role": "user", "content": "a"}]},
        {"messages": [{"role": "assistant", "content": "a"}]},
        {"input": ""},
        {"input": "a", "unknown": 1},
        {"input": "a", "tools": [{"name": "calculator"}, {"name": "calculator"}]},
        {"input": "a", "tools": [{"name": "a shell"}]},
        {"input": "a", "sampling": {"max_tokens": 3, "min_tokens": 4}},
        {"input": "a", "sampling": {"temperature": -1}},
        {"input": "a", "limits": {"max_steps": 0}},
        {"input": "a", "limits": {"max_cost_usd": 0}},
    ],
)
def test_refuses(body):
    with pytest.raises(ValidationError):
        TaskRequest.model_validate(body)


def test_input_is_short_for_one_user_message():
    assert TaskRequest(input="hi").conversation() == (Message(role="user", content="hi"),)


def test_digest_tells_conversations_apart():
    hello = Message(role="user", content="hello")
    variants = [
        start(None, [hello])[0],
        start("", [hello])[0],
        start(None, [Message(role="user", content="hello ")])[0],
        start(None, [Message(role="user", content="hello", pinned=True)])[0],
        start(None, [hello, hello])[0],
        start("hello", [hello])[0],
    ]
    assert len(set(variants)) == len(variants)
    assert extend(variants[0], "a") != extend(variants[0], "b")
    assert start("ab", [hello])[1] == 7


def test_error_codes_are_unique_and_named_by_class():
    codes = [error.code for error in ALL_ERRORS]
    assert len(set(codes)) == len(codes)
    assert all(error.type() == error.__name__ for error in ALL_ERRORS)
    assert all(error.status in (429, 503) for error in ALL_ERRORS if error.retryable)
