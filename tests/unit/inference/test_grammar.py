"""Grammars: schemas become them, and the rest of one allows exactly the rest of the text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import validate

from inference.engines.script import smallest_instance
from inference.grammar import GrammarError, NoContinuation
from inference.grammar_reader import read_grammar
from inference.json_grammar import SchemaError, schema_grammar

TOOL_CALL: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "tool": {"const": "calculator"},
                "expression": {"type": "string", "minLength": 1, "maxLength": 20},
                "digits": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["tool", "expression"],
            "additionalProperties": False,
        },
        {"$ref": "#/$defs/list"},
    ],
    "$defs": {
        "list": {"type": "array", "items": {"type": ["number", "null"]}, "maxItems": 3},
    },
}


def accepts(grammar: str, text: str) -> bool:
    """Whether the whole text is allowed: then an end is one of the ways on."""
    try:
        rest = read_grammar(grammar).rest_after(text)
    except NoContinuation:
        return False
    return '""' in rest.splitlines()[0].removeprefix("root ::= ").split(" | ")


@pytest.mark.parametrize(
    "text",
    [
        '{"tool": "calculator", "expression": "12*7"}',
        '{"tool":"calculator","expression":"é","digits":7}',
        "[]",
        "[1, -2.5e3,null]",
    ],
)
def test_what_the_schema_allows(text: str) -> None:
    validate(json.loads(text), TOOL_CALL)
    assert accepts(schema_grammar(json.dumps(TOOL_CALL)), text)


@pytest.mark.parametrize(
    "text",
    [
        '{"expression": "1", "tool": "calculator"}',
        '{"tool": "calculator"}',
        '{"tool": "calculator", "expression": ""}',
        '{"tool": "calculator", "expression": "1", "digits": 12}',
        "[1, 2, 3, 4]",
        '["x"]',
        "[01]",
        "[1",
    ],
)
def test_what_the_grammar_does_not(text: str) -> None:
    assert not accepts(schema_grammar(json.dumps(TOOL_CALL)), text)


@given(st.data())
def test_the_rest_after_any_cut_allows_the_rest(data: st.DataObject) -> None:
    text = '{"tool": "calculator", "expression": "1+\\u00e9🦙", "digits": 3}'
    grammar = schema_grammar(json.dumps(TOOL_CALL))
    first = data.draw(st.integers(0, len(text)))
    second = data.draw(st.integers(first, len(text)))
    # Twice, since a continuation may be cut again.
    rest = read_grammar(grammar).rest_after(text[:first])
    rest = read_grammar(rest).rest_after(text[first:second])
    assert accepts(rest, text[second:])
    assert not accepts(rest, text[second:] + "x")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(JSON_VALUES)
def test_an_empty_schema_allows_any_json(value: Any) -> None:
    assert accepts(schema_grammar("{}"), json.dumps(value, ensure_ascii=False))
    assert accepts(schema_grammar("true"), json.dumps(value, separators=(",", ":")))


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("{", "not JSON"),
        ('{"type": "frob"}', "unknown type"),
        ('{"type": "string", "pattern": "a+"}', "'pattern' is not supported"),
        ('{"$ref": "#/$defs/x"}', "leads nowhere"),
        ('{"type": "object", "required": ["a"]}', "not declared"),
        ('{"type": "integer", "minimum": 3}', "both ends"),
        ('{"type": "array", "minItems": 3, "maxItems": 2}', "below"),
        ("[" * 3000 + "]" * 3000, "nested|not JSON|object"),
        ('{"enum": []}', "not empty"),
    ],
)
def test_schemas_that_cannot_be_promised_are_refused(schema: str, complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        schema_grammar(schema)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "root ::= (",
        'root ::= "a',
        "root ::= x",
        'a ::= "b"',
        'root ::= "a" "b" )',
        'root ::= root "a" | "b"',
        'root ::= a\na ::= b? a\nb ::= "x"',
        'root ::= "a"{3,2}',
        'root ::= "\\q"',
        "%llguidance {}\nstart: /a/",
        'root ::= "a"\nroot ::= "b"',
    ],
)
def test_what_is_no_grammar(text: str) -> None:
    with pytest.raises(GrammarError):
        read_grammar(text)


def test_notation() -> None:
    grammar = """# a comment
root ::= greeting (", " [A-Z] [a-z]{1,3} | "\\x21"+)* # and another
greeting ::= "hi" |
  "h\\u00e9" | [^a-zA-Z "] .
"""
    for text in ("hi", "hé, Bob", "hi!!!, Al!", "7é"):
        assert accepts(grammar, text), text
    for text in ("h", "hi, bob", "hi, Bobby", "a7"):
        assert not accepts(grammar, text), text


def test_smallest_instance_obeys_its_schema() -> None:
    for schema in (TOOL_CALL, TOOL_CALL["$defs"]["list"], {"enum": [3]}, {"type": "boolean"}):
        value = smallest_instance(schema)
        validate(value, schema)
        assert accepts(schema_grammar(json.dumps(schema)), json.dumps(value))
