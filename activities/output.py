"""Does an answer obey the schema it was asked to? Checked whatever the engine promised.

Messages name the place and the rule and hide the value: they are shown to the model beside its
own answer, and to callers in an error that may be read where the answer may not.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from inference.grammar_reader import read_grammar
from inference.json_grammar import schema_grammar
from inference.json_schema import first_problem

__all__ = ["expressible", "instruction", "objection", "quoted", "repair"]

# Of an answer that is shown again. A longer one was most likely cut off, and its start says so.
QUOTED_CHARS = 2_000


@lru_cache(maxsize=256)
def expressible(schema: str) -> bool:
    """Tell whether a grammar can hold a model to a schema (JSON Schema text)."""
    try:
        read_grammar(schema_grammar(schema))
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        # Whatever the reason: what cannot be promised is looked at afterwards.
        return False
    return True


def objection(schema: str, answer: str, finish_reason: str) -> str | None:
    """Return what is wrong with an answer, in words fit for the model; None if nothing is.

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


def instruction(schema: str) -> str:
    """Return what is added to the question, so that the model knows what is wanted."""
    return f"\n\nAnswer with JSON that obeys this JSON Schema, and nothing else:\n{schema}"


def repair(problem: str) -> str:
    """Return what the model is told after an answer that does not obey."""
    return f"This answer does not obey the JSON Schema: {problem}. Write it again, as JSON alone."


def quoted(answer: str) -> str:
    """Return as much of a wrong answer as is shown again."""
    return answer if len(answer) <= QUOTED_CHARS else answer[:QUOTED_CHARS] + "…"


def _no_constant(name: str) -> Any:
    raise ValueError(name)
