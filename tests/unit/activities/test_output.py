"""What is said about answers that do not obey, and which schemas a model can be held to."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.output import expressible, quoted
from activities.transcript import conversation_units
from inference.json_grammar import SchemaError
from inference.json_schema import objection, require_valid
from store.tasks import StepRecord, Transcript
from workflows.contracts import Rejected, Turn

AGE = json.dumps(
    {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('{"age": 3}', None),
        (' {"age": 3}\n', None),
        ('{"age": "secret"}', "/age: the value is not of type"),
        ("{}", '"age" is a required property'),
        ("[]", "the whole: the value is not of type"),
        ('```json\n{"age": 3}\n```', "it is not JSON"),
        ('{"age": NaN}', "it is not JSON"),
        ('{"age": 3} and more', "it is not JSON"),
        ("", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
    ],
)
def test_what_is_wrong_is_told_without_the_value(answer: str, said: str | None) -> None:
    problem = objection(AGE, answer, "stop")
    if said is None:
        assert problem is None
    else:
        assert problem is not None
        assert said in problem
        assert "secret" not in problem


def test_an_answer_that_was_cut_off_is_wrong_even_if_it_reads_well() -> None:
    assert objection(AGE, '{"age": 3}', "length") == "it was cut off: answer shorter"


@pytest.mark.parametrize(
    ("schema", "held"),
    [
        ({"type": "object", "properties": {"a": {"enum": [1, 2]}}}, True),
        ({"type": "string", "pattern": "^a"}, False),
        ({"type": "number", "minimum": 0.5}, False),
        ({"type": "object", "patternProperties": {"a": {}}}, False),
        ({"$ref": "#"}, False),
        ({}, True),
    ],
)
def test_which_schemas_a_model_can_be_held_to(schema: dict[str, object], held: bool) -> None:
    require_valid(json.dumps(schema))
    assert expressible(json.dumps(schema)) is held


_NAMES = ("type", "enum", "const", "properties", "items", "minimum", "exclusiveMaximum", "format")
_MORE = ("minLength", "maxItems", "anyOf", "allOf", "$ref", "required", "pattern", "not")
_KEYWORDS = st.sampled_from(_NAMES + _MORE)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYWORDS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(_KEYWORDS, _JSON, max_size=5), _JSON)
def test_no_schema_and_no_answer_breaks_it(schema: dict[str, object], answer: object) -> None:
    text = json.dumps(schema)
    try:
        require_valid(text)
    except SchemaError:
        return
    expressible(text)
    objection(text, json.dumps(answer), "stop")


def test_patterns_take_linear_time() -> None:
    evil = json.dumps({"type": "string", "pattern": "^(a+)+$"})
    assert objection(evil, json.dumps("a" * 50_000 + "!"), "stop") is not None


def test_the_model_sees_its_answer_with_what_is_wrong_right_after_the_question() -> None:
    transcript = Transcript(
        {"input": "How old?", "system": "Be brief.", "output_schema": AGE},
        [StepRecord(1, "old", []), StepRecord(2, "x" * 5000, [])],
    )
    rejected = (Rejected(step=1, problem="one"), Rejected(step=2, problem="two"))
    units = conversation_units(transcript, Turn(purpose="answer", rejected=rejected), [])
    told = [(m.role, m.content) for unit in units for _, _, m in unit.messages]
    assert [role for role, _ in told] == ["system", "user"] + ["assistant", "user"] * 2
    assert told[1][1].endswith(AGE)
    assert told[2][1] == "old"
    assert "one" in told[3][1]
    assert told[4][1] == quoted("x" * 5000) != "x" * 5000
    assert "two" in told[5][1]
    # Only the newest must stay, whatever the window.
    assert [unit.pinned for unit in units] == [True, True, False, True]
    # A tool choice is asked for without any of it.
    choosing = conversation_units(transcript, Turn(purpose="tool_call", tools=("calculator",)), [])
    assert AGE not in choosing[-1].messages[0][2].content
