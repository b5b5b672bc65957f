"""Built-in tools: Python functions, typed by their signature.

The signature gives the JSON schema of the arguments. A function's own grammar rule holds a small
model tighter than the schema could: to arithmetic, not only to a string.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, get_type_hints

from pydantic import BaseModel, create_model

from activities.calculator import calculate

__all__ = ["BUILT_IN", "BuiltIn", "calculator", "schema_of"]


@dataclass(frozen=True)
class BuiltIn:
    """A tool that needs no registration.

    Attributes:
        rule: GBNF of a whole choice of this tool; the rule has the tool's name.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    rule: str


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON schema of a function's arguments."""
    hints = get_type_hints(function)
    fields: dict[str, Any] = {
        name: (hints[name], ... if item.default is inspect.Parameter.empty else item.default)
        for name, item in inspect.signature(function).parameters.items()
        if name != "self"
    }
    model: type[BaseModel] = create_model(function.__name__, **fields)
    return {**model.model_json_schema(), "additionalProperties": False}


def calculator(*, expression: str) -> str:
    """Compute an arithmetic expression.

    Raises:
        CalculationError: It cannot be; the text says why.
    """
    return f"{expression} = {calculate(expression)}"


class Search(Protocol):
    """The signature of `search`; what it searches is the worker's."""

    def __call__(self, *, query: str) -> Any:
        """Find passages."""


_CALCULATOR = r"""
calculator ::= "{\"tool\": \"calculator\", \"expression\": \"" sum "\"}"
sum ::= term (" "? operator " "? term){0,7}
operator ::= "+" | "-" | "*" | "/"
term ::= amount | "(" amount " "? operator " "? amount ")"
amount ::= [0-9]{1,12} ("." [0-9]{1,6})?
"""
_SEARCH = r"""
search ::= "{\"tool\": \"search\", \"query\": \"" word (" " word){0,11} "\"}"
word ::= [A-Za-z] [A-Za-z'-]{0,23}
"""

BUILT_IN: dict[str, BuiltIn] = {
    "calculator": BuiltIn(
        "calculator",
        "computes an arithmetic expression exactly",
        schema_of(calculator),
        _CALCULATOR,
    ),
    "search": BuiltIn(
        "search", "finds passages in the documents", schema_of(Search.__call__), _SEARCH
    ),
}
