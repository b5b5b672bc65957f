"""A model's choice is read strictly, and the grammar allows no other."""

import pytest

from activities.calculator import calculate
from activities.toolbox import choice_grammar, describe_tools, parse_choice, parse_choices
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


ONE = '{"tool": "calculator", "expression": "12*7"}'
OTHER = '{"tool": "search", "query": "layers"}'
LISTS = [
    (f"[{ONE}]", ["calculator"]),
    (f"[{ONE}, {OTHER}]", ["calculator", "search"]),
    (f"[{OTHER},{OTHER},{ONE}]", ["search", "search", "calculator"]),
    ('[{"tool": "answer"}]', []),
]


@pytest.mark.parametrize(("choice", "tools"), LISTS)
def test_several_calls_are_a_list_and_any_beginning_of_it_goes_on(choice, tools):
    grammar = read_grammar(choice_grammar(TOOLS, may_answer=True, parallel=3))
    for end in range(len(choice) + 1):
        rest = grammar.rest_after(choice[:end])
        read_grammar(rest).rest_after(choice[end:])
    assert [call.name for call in parse_choices(choice, TOOLS, parallel=3)] == tools


@pytest.mark.parametrize(
    "choice",
    [
        ONE,
        "[]",
        f"[{ONE}, {ONE}, {ONE}, {{",
        f'[{ONE}, {{"tool": "answer"',
        '[{"tool": "answer"}, {"tool": "',
    ],
)
def test_the_grammar_of_several_calls_refuses(choice):
    with pytest.raises(NoContinuation):
        read_grammar(choice_grammar(TOOLS, may_answer=True, parallel=3)).rest_after(choice)


def test_a_list_is_no_way_out_while_a_tool_is_owed():
    with pytest.raises(NoContinuation):
        read_grammar(choice_grammar(TOOLS, may_answer=False, parallel=2)).rest_after('[{"tool": "a')


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        (f"[{ONE}, ", 0),
        ("null", 0),
        ("[1, null]", 0),
        (ONE, 1),
        (f'[{{"tool": "shell"}}, {ONE}]', 1),
        (f"[{', '.join([ONE] * 9)}]", 3),
    ],
)
def test_of_a_list_what_is_a_call_is_read_and_no_more_than_may_be(text, count):
    assert len(parse_choices(text, TOOLS, parallel=3)) == count


def test_a_model_is_told_how_many_calls_it_may_choose():
    assert "up to 3 calls" in describe_tools(TOOLS, may_answer=True, parallel=3)
    assert "calls" not in describe_tools(TOOLS, may_answer=True)
