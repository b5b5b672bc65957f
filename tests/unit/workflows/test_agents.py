"""What a request takes from the agent it names, and what of it wins."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from workflows.agents import AgentSpec, resolve, split_reference
from workflows.contracts import TaskRequest
from workflows.output import MAX_SCHEMA_BYTES, schema_text

SPEC: dict[str, Any] = {
    "description": "d",
    "system": "s",
    "model": "m",
    "tools": [{"name": "calculator", "must_call": True}],
    "collections": ["one", "two"],
    "sampling": {"max_tokens": 99, "temperature": 0.5},
    "limits": {"max_steps": 5, "max_cost_usd": "0.25"},
    "output_schema": {"type": "object", "properties": {"z": {}, "a": {}}},
}


def _resolved(asked: dict[str, Any], spec: dict[str, Any] = SPEC) -> dict[str, Any]:
    request = TaskRequest.model_validate_json(json.dumps({"input": "i"} | asked), strict=True)
    # As an agent is kept and read.
    kept = AgentSpec.model_validate(AgentSpec.model_validate(spec).stored())
    return resolve(request, kept, name="a", version=3).model_dump(mode="json")


def test_what_is_left_open_is_the_agents() -> None:
    resolved = _resolved({})
    assert (resolved["agent"], resolved["input"]) == ("a@3", "i")
    for field in ("system", "model", "collections"):
        assert resolved[field] == SPEC[field]
    assert resolved["limits"]["max_cost_usd"] == "0.25"
    assert json.loads(resolved["output_schema"]) == SPEC["output_schema"]
    assert "description" not in resolved


@pytest.mark.parametrize(
    ("asked", "field", "value"),
    [
        ({"system": None}, "system", None),
        ({"tools": []}, "tools", []),
        ({"collections": ["three"]}, "collections", ["three"]),
        ({"output_schema": None}, "output_schema", None),
        ({"model": "n"}, "model", "n"),
        # The agent's model would hide the route that was asked for.
        ({"route": "r"}, "model", None),
    ],
)
def test_what_is_said_wins(asked: dict[str, Any], field: str, value: Any) -> None:
    assert _resolved(asked)[field] == value


def test_sampling_and_limits_are_joined_field_by_field() -> None:
    resolved = _resolved({"sampling": {"temperature": 0.0}, "limits": {"max_steps": 2}})
    assert (resolved["sampling"]["temperature"], resolved["sampling"]["max_tokens"]) == (0.0, 99)
    assert (resolved["limits"]["max_steps"], resolved["limits"]["max_cost_usd"]) == (2, "0.25")


def test_a_contradiction_is_an_error() -> None:
    with pytest.raises(ValidationError):
        _resolved({"sampling": {"max_tokens": 5}}, {"sampling": {"min_tokens": 50}})


def test_a_default_that_is_written_down_is_kept_as_none() -> None:
    plain, wordy = AgentSpec(), AgentSpec.model_validate({"route": "default", "limits": {}})
    assert plain.stored() == wordy.stored() == {}


def test_a_reference_is_a_name_with_or_without_a_version() -> None:
    assert split_reference("a.b-c") == ("a.b-c", None)
    assert split_reference("a@12") == ("a", 12)
    for wrong in ("", "@1", "a@0", "a@", "a@1@2", "a b", "é"):
        with pytest.raises(ValidationError):
            TaskRequest(input="i", agent=wrong)


def test_a_schema_keeps_its_order_at_rest() -> None:
    schema = {"properties": {"zz": {}, "a": {}, "m": {}}}
    request = TaskRequest(input="i", output_schema=schema)
    stored = request.model_dump(mode="json")
    assert isinstance(stored["output_schema"], str)
    read = TaskRequest.model_validate(stored).output_schema
    assert read is not None
    assert list(read["properties"]) == ["zz", "a", "m"]
    assert schema_text(read) == stored["output_schema"]


@pytest.mark.parametrize(
    "schema",
    [
        '{"minimum": NaN}',
        '{"a": 1e999}',
        f'{{"title": "{"x" * MAX_SCHEMA_BYTES}"}}',
        "[]",
        '"{"',
        "1",
    ],
    ids=["nan", "infinite", "large", "list", "text", "number"],
)
def test_what_is_no_schema_is_refused(schema: str) -> None:
    with pytest.raises(ValidationError):
        TaskRequest.model_validate_json(f'{{"input": "i", "output_schema": {schema}}}', strict=True)
