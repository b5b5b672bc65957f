"""A model's choice is read strictly, and the schema allows no other."""

import json

import jsonschema
import pytest

from activities.calculator import calculate
from activities.toolbox import choice_schema, describe_tools, parse_choice
from workflows.contracts import ToolCall

TOOLS = ("calculator", "search")


def test_schema_allows_what_parse_reads():
    schema = json.loads(choice_schema(TOOLS, may_answer=True))
    for choice, expected in [
        ({"tool": "calculator", "expression": "12*7"}, "calculator"),
        ({"tool": "search", "query": "layers of the chain"}, "search"),
        ({"tool": "answer"}, None),
    ]:
        jsonschema.validate(choice, schema)
        call = parse_choice(json.dumps(choice), TOOLS)
        assert (call.name if call else None) == expected


@pytest.mark.parametrize(
    "choice",
    [
        {"tool": "shell", "command": "ls"},
        {"tool": "calculator"},
        {"tool": "calculator", "expression": "import os"},
        {"tool": "search", "query": ""},
        {"tool": "search", "query": "x" * 121},
        {"tool": "answer", "text": "no"},
    ],
)
def test_schema_refuses(choice):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(choice, json.loads(choice_schema(TOOLS, may_answer=True)))


def test_answer_is_no_choice_while_a_tool_is_owed():
    schema = json.loads(choice_schema(("search",), may_answer=False))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"tool": "answer"}, schema)
    assert '"answer"' not in describe_tools(("search",), may_answer=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"tool": "calculator", "expr',
        "[]",
        "null",
        '{"tool": "shell"}',
        '{"tool": "calculator", "expression": 5}',
        '{"tool": "calculator", "expression": " "}',
    ],
)
def test_what_is_no_valid_call_is_none(text):
    assert parse_choice(text, TOOLS) is None


def test_a_tool_that_was_not_offered_is_not_called():
    assert parse_choice('{"tool": "calculator", "expression": "1+1"}', ("search",)) is None
    assert parse_choice('{"tool": "search", "query": "abc"}', ("search",)) == ToolCall(
        name="search", arguments={"query": "abc"}
    )


@pytest.mark.parametrize("expression", ["12*7", "(1+2)*3", "100 - 5 / 2", "3.5 * 4"])
def test_what_the_pattern_lets_through_is_usually_arithmetic(expression):
    schema = json.loads(choice_schema(("calculator",), may_answer=False))
    jsonschema.validate({"tool": "calculator", "expression": expression}, schema)
    assert calculate(expression)
