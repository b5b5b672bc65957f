"""What the tools are: their descriptions for the model, and the grammar a choice must obey."""

from __future__ import annotations

import json
from collections.abc import Sequence

from workflows.contracts import ToolCall, ToolName

__all__ = ["choice_grammar", "describe_tools", "parse_choice"]

_DESCRIPTIONS: dict[ToolName, str] = {
    "calculator": "computes an arithmetic expression exactly",
    "search": "finds passages in the documents",
}
_ARGUMENT: dict[ToolName, str] = {"calculator": "expression", "search": "query"}
ANSWER = "answer"

# One rule a tool, in GBNF: a grammar, where a JSON schema would do for the shape, because it also
# keeps a very small model from writing an expression that is not arithmetic.
_RULES: dict[ToolName, str] = {
    "calculator": r"""
calculator ::= "{\"tool\": \"calculator\", \"expression\": \"" sum "\"}"
sum ::= term (" "? operator " "? term){0,7}
operator ::= "+" | "-" | "*" | "/"
term ::= number | "(" number " "? operator " "? number ")"
number ::= [0-9]{1,12} ("." [0-9]{1,6})?
""",
    "search": r"""
search ::= "{\"tool\": \"search\", \"query\": \"" word (" " word){0,11} "\"}"
word ::= [A-Za-z] [A-Za-z'-]{0,23}
""",
}
_ANSWER_RULE = r"""
answer ::= "{\"tool\": \"answer\"}"
"""


def describe_tools(tools: Sequence[ToolName], *, may_answer: bool) -> str:
    """Return the instruction that asks a model to choose among tools."""
    lines = [f'- "{name}": {_DESCRIPTIONS[name]}' for name in tools]
    if may_answer:
        lines.append(f'- "{ANSWER}": no tool is needed any more')
    return "Choose the next tool for the question.\n" + "\n".join(lines) + "\nReply with JSON."


def choice_grammar(tools: Sequence[ToolName], *, may_answer: bool) -> str:
    """Return the grammar (GBNF) that a choice must obey."""
    options = [*tools, *([ANSWER] if may_answer else [])]
    rules = "".join(_RULES[name] for name in tools) + (_ANSWER_RULE if may_answer else "")
    return f"root ::= {' | '.join(options)}\n{rules}"


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
