"""What a model is told of the schema its answer must obey, and whether it can be held to it."""

from __future__ import annotations

from functools import lru_cache

from inference.grammar_reader import read_grammar
from inference.json_grammar import schema_grammar
from inference.json_schema import objection

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


def instruction(schema: str) -> str:
    """Return what is added to the question, so that the model knows what is wanted."""
    return f"\n\nAnswer with JSON that obeys this JSON Schema, and nothing else:\n{schema}"


def repair(problem: str) -> str:
    """Return what the model is told after an answer that does not obey."""
    return f"This answer does not obey the JSON Schema: {problem}. Write it again, as JSON alone."


def quoted(answer: str) -> str:
    """Return as much of a wrong answer as is shown again."""
    return answer if len(answer) <= QUOTED_CHARS else answer[:QUOTED_CHARS] + "…"
