"""What obeys a JSON Schema: one way to read schemas, at the edge and where answers are looked at.

Nothing is fetched, patterns take linear time whatever they are, and messages hide the values: they
go to callers, into errors that are read where an answer may not be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import NoReturn

import jsonschema_rs

from inference.json_grammar import SchemaError

__all__ = ["MASK", "first_problem", "objection", "require_valid"]

MASK = "the value"
MESSAGE_CHARS = 300


def require_valid(schema: str) -> None:
    """Refuse a text that is no JSON Schema, or one that needs what is not in it.

    Raises:
        SchemaError: Says what is wrong and where.
    """
    _validator(schema)


def first_problem(schema: str, value: object) -> str | None:
    """Return what is wrong with a value, with where it stands; None if it obeys the schema."""
    problems: Iterator[jsonschema_rs.ValidationError] = _validator(schema).iter_errors(value)
    for problem in problems:
        where = "".join(f"/{part}" for part in problem.instance_path)
        return f"{where or 'the whole'}: {problem.message}"[:MESSAGE_CHARS]
    return None


def objection(schema: str, answer: str, finish_reason: str) -> str | None:
    """Return what is wrong with an answer, in words fit for the model; None if nothing is.

    Checked whatever the engine promised.

    Args:
        schema: JSON Schema text.
        answer: What the model said.
        finish_reason: How it ended; an answer that was cut off is wrong even if it can be read.
    """
    if finish_reason == "length":
        return "it was cut off: answer shorter"
    try:
        value = json.loads(answer, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return "it is not JSON: write the JSON value alone, without any words around it"
    return first_problem(schema, value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


# An agent asks for the same few schemas again and again.
@lru_cache(maxsize=256)
def _validator(schema: str) -> jsonschema_rs.Validator:
    try:
        return jsonschema_rs.validator_for(
            json.loads(schema),
            offline=True,
            mask=MASK,
            pattern_options=jsonschema_rs.RegexOptions(),
            validate_formats=True,
        )
    except jsonschema_rs.ValidationError as error:
        if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
            raise SchemaError("the schema refers to what is not in it") from None
        where = "".join(f"/{part}" for part in error.instance_path)
        raise SchemaError(f"{where or 'the schema'}: {error.message}"[:MESSAGE_CHARS]) from None
    except (jsonschema_rs.ReferencingError, ValueError, RecursionError):
        raise SchemaError("the schema cannot be read") from None
