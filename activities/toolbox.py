"""The registry of tools as a model meets it: descriptions, and the grammar a choice must obey."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from activities.builtin import BUILT_IN
from activities.tool_schema import grammar_schema
from inference.json_grammar import schema_grammar
from store.tool_registry import ToolRecord
from workflows.contracts import ToolCall, ToolName

__all__ = [
    "ANSWER",
    "Registered",
    "choice_grammar",
    "describe_tools",
    "parse_choice",
    "parse_choices",
]

Registered = Mapping[ToolName, ToolRecord]

ANSWER = "answer"
_ANSWER_RULE = r"""
answer ::= "{\"tool\": \"answer\"}"
"""
_NONE: Registered = {}


def describe_tools(
    tools: Sequence[ToolName],
    *,
    may_answer: bool,
    registered: Registered = _NONE,
    parallel: int = 1,
) -> str:
    """Return the instruction that asks a model to choose among tools, up to `parallel` calls."""
    lines = [f'- "{name}": {_description(name, registered)}' for name in tools]
    if may_answer:
        lines.append(f'- "{ANSWER}": no tool is needed any more')
    listed = "\n".join(lines)
    if parallel == 1:
        return f"Choose the next tool for the question.\n{listed}\nReply with JSON."
    return (
        f"Choose the next tools for the question, up to {parallel} calls that can be made at the "
        f"same time.\n{listed}\nReply with a JSON list."
    )


def _description(name: ToolName, registered: Registered) -> str:
    if name in BUILT_IN:
        return BUILT_IN[name].description
    tool = registered[name]
    schema = json.dumps(tool.input_schema, ensure_ascii=False, separators=(",", ":"))
    return f"{tool.description or 'no description'}; arguments: {schema}"


def choice_grammar(
    tools: Sequence[ToolName],
    *,
    may_answer: bool,
    registered: Registered = _NONE,
    parallel: int = 1,
) -> str:
    """Return the grammar (GBNF) that a choice must obey.

    Where several calls may be chosen, it is a list of calls, or of the choice to answer alone: the
    model has named no tool before it must decide between the two.
    """
    ours = [name for name in tools if name in BUILT_IN]
    others = [registered[name] for name in tools if name not in BUILT_IN]
    calls = [*ours, *(["registered"] if others else [])]
    answer = [ANSWER] if may_answer else []
    rules = "".join(BUILT_IN[name].rule for name in ours) + (_ANSWER_RULE if may_answer else "")
    if others:
        rules += _grammar_of(others)
    if parallel == 1:
        return f"root ::= {' | '.join(calls + answer)}\n{rules}"
    several = f'call ("," " "? call){{0,{parallel - 1}}}'
    return (
        f'root ::= "[" ({" | ".join([several, *answer])}) "]"\n'
        f"call ::= {' | '.join(calls)}\n{rules}"
    )


def _grammar_of(tools: Sequence[ToolRecord]) -> str:
    """One grammar for all of them: their schemas as definitions of one document."""
    document = {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "tool": {"const": tool.name},
                    "arguments": {"$ref": f"#/$defs/t{number}"},
                },
                "required": ["tool", "arguments"],
            }
            for number, tool in enumerate(tools)
        ],
        "$defs": {
            f"t{number}": grammar_schema(tool.input_schema, f"#/$defs/t{number}")
            for number, tool in enumerate(tools)
        },
    }
    grammar = schema_grammar(json.dumps(document))
    return "registered" + grammar.removeprefix("root")


def parse_choice(
    text: str, tools: Sequence[ToolName], registered: Registered = _NONE
) -> ToolCall | None:
    """Read a choice the model wrote.

    Returns:
        The call, or None if the model chose to answer or wrote no valid call (it ran out of
        tokens): the loop then goes on to the answer.
    """
    try:
        return _call(json.loads(text), tools, registered)
    except (ValueError, RecursionError):
        return None


def parse_choices(
    text: str, tools: Sequence[ToolName], registered: Registered = _NONE, *, parallel: int
) -> tuple[ToolCall, ...]:
    """Read a choice of up to `parallel` calls; one call that is no list counts as one, too.

    Returns:
        The calls in their order. None are the choice to answer, or no valid choice.
    """
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    read = [
        _call(choice, tools, registered)
        for choice in (choices if isinstance(choices, list) else [choices])
    ]
    return tuple(call for call in read if call is not None)[:parallel]


def _call(choice: object, tools: Sequence[ToolName], registered: Registered) -> ToolCall | None:
    if not isinstance(choice, dict):
        return None
    name = next((tool for tool in tools if tool == choice.get("tool")), None)
    if name is None:
        return None
    if name not in BUILT_IN:
        arguments = choice.get("arguments")
        if name not in registered or not isinstance(arguments, dict):
            return None
        return ToolCall(name=name, arguments=arguments)
    (only,) = BUILT_IN[name].input_schema["properties"]
    argument = choice.get(only)
    if not isinstance(argument, str) or not argument.strip():
        return None
    return ToolCall(name=name, arguments={only: argument})
