"""What an answer must obey: a JSON Schema, carried as text where its order matters.

The order of properties is the order in which a model writes them, and PostgreSQL's jsonb does not
keep it: at rest a schema is text. Histories carry its digest only.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

__all__ = ["MAX_REJECTIONS", "MAX_SCHEMA_BYTES", "OutputSchema", "no_answer_obeyed", "schema_text"]

MAX_SCHEMA_BYTES = 16_384
# Answers that do not obey are shown to the model with what is wrong; this often, then it is over.
MAX_REJECTIONS = 3


def schema_text(schema: dict[str, Any]) -> str:
    """Return a schema as JSON text, in the order it was written in.

    Raises:
        ValueError: It has a number that JSON has not, or is too large.
    """
    try:
        text = json.dumps(schema, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        raise ValueError("output_schema is not JSON") from None
    if len(text) > MAX_SCHEMA_BYTES:
        raise ValueError(f"output_schema is larger than {MAX_SCHEMA_BYTES} bytes")
    return text


def _read(value: Any) -> Any:
    """Take text for what it says, as it stands in a task's row."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("output_schema is not JSON") from None
    if isinstance(value, dict):
        schema_text(value)
    return value


def no_answer_obeyed(problem: str) -> str:
    """Return the words of a task that ends because of what is wrong with its last answer."""
    return f"none of {MAX_REJECTIONS + 1} answers obeyed output_schema; the last one: {problem}"


OutputSchema = Annotated[
    dict[str, Any],
    BeforeValidator(_read),
    PlainSerializer(schema_text, return_type=str, when_used="json"),
    Field(
        description="A JSON Schema that the answer must obey: a JSON object of at most 16,384 "
        "bytes. Properties are written in the order given here.",
    ),
]
