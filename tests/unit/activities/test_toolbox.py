"""A model's choice is read strictly, and the grammar allows no other."""

import pytest

from activities.calculator import calculate
from activities.toolbox import choice_grammar, describe_tools, parse_choice
from inference.grammar import NoContinuation
from inference.grammar_reader import read_grammar
from workflows.contracts import ToolCall

TOOLS = ("calculator", "search")


CHOICES = [
    ('{"tool": "calculator", "expression": "12*7"}', "calculator"),
    ('{"tool": "calculator", "expression": "(3 + 4) * 2.5 - 1"}', "calculator"),
    ('{"tool": "search", "query": "layers of the chain"}', "search"),
    ('{"tool": "answer"}', None),
]


@pytest.mark.parametrize(("choice", "tool"), CHOICES)
def test_what_the_grammar_allows_is_read(choice, tool):
    read_grammar(choice_grammar(TOOLS, may_answer=True)).rest_after(choice)
    call = parse_choice(choice, TOOLS)
    assert (call.name if call else None) == tool
    if tool == "calculator":
        assert calculate(call.arguments["expression"])


@pytest.mark.parametrize(
    "choice",
    [
        '{"tool": "shell"',
        '{"tool": "calculator"}',
        '{"tool": "calculator", "expression": ""',
        '{"tool": "calculator", "expression": "import',
        '{"tool": "calculator", "expression": "12**7"',
        '{"tool": "calculator", "expression": "(1+2"',
        '{"tool": "search", "query": ""',
        '{"tool": "search", "query": "a' + " a" * 12,
        '{"tool": "answer", ',
    ],
)
def test_the_grammar_refuses(choice):
    with pytest.raises(NoContinuation):
        read_grammar(choice_grammar(TOOLS, may_answer=True)).rest_after(choice)


def test_answer_is_no_choice_while_a_tool_is_owed():
    with pytest.raises(NoContinuation):
        read_grammar(choice_grammar(("search",), may_answer=False)).rest_after('{"tool": "a')
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
