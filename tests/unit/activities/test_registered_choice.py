"""A registered tool is called in the form its schema gives: the grammar allows no other."""

import json

import pytest

from activities.openapi import drafts
from activities.tool_drafts import SourceRefused, draft
from activities.toolbox import choice_grammar, describe_tools, parse_choice
from inference.grammar import NoContinuation
from inference.grammar_reader import read_grammar
from store.tool_registry import ToolRecord
from tests.integration.tasks.services import DOCUMENT

TOOLS = ("calculator", "svc.forecast", "svc.order")


def registered():
    made = drafts(
        DOCUMENT, source="svc", base_url="http://svc.example", document_url=None,
        operations=("forecast", "order"), auth=(),
    )  # fmt: skip
    return {
        each.name: ToolRecord(
            each.name, each.digest, "svc", "openapi", each.description, each.input_schema,
            each.target, "never", 30, 3,
        )
        for each in made
    }  # fmt: skip


def call(tool, arguments):
    return json.dumps({"tool": tool, "arguments": arguments})


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("svc.forecast", {"city": "Rome"}),
        ("svc.forecast", {"city": "Rome", "days": 7}),
        ("svc.order", {"body": {"item": "tea", "count": 2}}),
    ],
)
def test_what_the_grammar_allows_is_read(tool, arguments):
    text = call(tool, arguments)
    read_grammar(choice_grammar(TOOLS, may_answer=True, registered=registered())).rest_after(text)
    read = parse_choice(text, TOOLS, registered())
    assert (read.name, read.arguments) == (tool, arguments)


@pytest.mark.parametrize(
    "text",
    [
        call("svc.forecast", {})[:-2],
        call("svc.forecast", {"city": "Rome", "days": 8})[:-2],
        call("svc.forecast", {"city": "Rome", "wind": 1})[:-4],
        call("svc.order", {"body": {"item": "tea"}})[:-2],
        '{"tool": "svc.other"',
    ],
)
def test_the_grammar_refuses(text):
    grammar = read_grammar(choice_grammar(TOOLS, may_answer=True, registered=registered()))
    with pytest.raises(NoContinuation):
        grammar.rest_after(text + "}")


def test_a_model_reads_the_description_and_the_schema():
    told = describe_tools(TOOLS, may_answer=True, registered=registered())
    assert '"svc.forecast": forecast of the service; arguments: {"type":"object"' in told


def test_a_digest_covers_everything_that_says_what_a_tool_is():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    one = draft("s", "op", "does it", schema, {"url": "http://a"})
    others = [
        draft("s", "op", "does it, and more", schema, {"url": "http://a"}),
        draft("s", "op", "does it", {"type": "object", "properties": {}}, {"url": "http://a"}),
        draft("s", "op", "does it", schema, {"url": "http://b"}),
        draft("s", "po", "does it", schema, {"url": "http://a"}),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 5
    assert draft("s", "op", "does  it", dict(schema), {"url": "http://a"}).digest == one.digest


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "object", "properties": {"a": {"$ref": "http://x.example/schema"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
        {"type": "object", "properties": {"a": {"type": "banana"}}},
        {"type": "object", "properties": {"a": {"enum": ["x" * 20_000]}}},
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schema):
    with pytest.raises(SourceRefused):
        draft("s", "op", "", schema, {})
