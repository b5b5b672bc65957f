"""What the tools are: their descriptions for the model, and the schema a choice must obey."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from workflows.contracts import ToolCall, ToolName

__all__ = ["choice_schema", "describe_tools", "parse_choice"]

_DESCRIPTIONS: dict[ToolName, str] = {
    "calculator": "computes an arithmetic expression exactly",
    "search": "finds passages in the documents",
}
_ARGUMENT: dict[ToolName, str] = {"calculator": "expression", "search": "query"}
_ARGUMENT_SCHEMA: dict[ToolName, dict[str, Any]] = {
    # The pattern is what lets a very small model only ever write arithmetic.
    "calculator": {
        "type": "string",
        "pattern": "^[(]{0,2}[0-9]{1,12}([-+*/ ().]{1,4}[0-9]{1,12}){0,8}[)]{0,2}$",
    },
    "search": {"type": "string", "minLength": 3, "maxLength": 120},
}
ANSWER = "answer"


def describe_tools(tools: Sequence[ToolName], *, may_answer: bool) -> str:
    """Return the instruction that asks a model to choose among tools."""
    lines = [f'- "{name}": {_DESCRIPTIONS[name]}' for name in tools]
    if may_answer:
        lines.append(f'- "{ANSWER}": no tool is needed any more')
    return "Choose the next tool for the question.\n" + "\n".join(lines) + "\nReply with JSON."


def choice_schema(tools: Sequence[ToolName], *, may_answer: bool) -> str:
    """Return the JSON schema of a choice, as JSON text."""
    options: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {
                "tool": {"const": name},
                _ARGUMENT[name]: _ARGUMENT_SCHEMA[name],
            },
            "required": ["tool", _ARGUMENT[name]],
            "additionalProperties": False,
        }
        for name in tools
    ]
    if may_answer:
        options.append(
            {
                "type": "object",
                "properties": {"tool": {"const": ANSWER}},
                "required": ["tool"],
                "additionalProperties": False,
            }
        )
    return json.dumps(options[0] if len(options) == 1 else {"oneOf": options})


def parse_choice(text: str, tools: Sequence[ToolName]) -> ToolCall | None:
    """Read a choice the model wrote.

    Returns:
        The call, or None if the model chose to answer or wrote no valid call (it ran out of
        tokens): the loop then goes on to the answer.
    """
    try:
        choice = json.loads(text)
    except ValueError:
        return None
    if not isinstance(choice, dict):
        return None
    name = next((tool for tool in tools if tool == choice.get("tool")), None)
    if name is None:
        return None
    argument = choice.get(_ARGUMENT[name])
    if not isinstance(argument, str) or not argument.strip():
        return None
    return ToolCall(name=name, arguments={_ARGUMENT[name]: argument})
