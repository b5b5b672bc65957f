"""What an upstream is asked: messages and tools as OpenAI's protocol has them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from activities.builtin import BUILT_IN
from activities.toolbox import ANSWER, Registered
from inference.templates import ChatMessage, plain
from inference.upstream.messages import ToolPiece
from inference.upstream.options import UpstreamOptions
from workflows.contracts import GenerateInput, ToolName, Turn

__all__ = ["ByBytes", "ToolNames", "choice_text", "parameters_of", "tools_of"]

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64

Message = dict[str, str]


@dataclass(frozen=True)
class ByBytes:
    """A ruler for models whose tokenizer is not here: at most so many bytes of text a token.

    Attributes:
        bytes_per_token: Fewest bytes that a token is taken to have.
        tools: What the tools' definitions add, in bytes.
        around_message: Most tokens that the chat template puts around a message.
        around_prompt: Most that it puts around all of them.
    """

    bytes_per_token: float
    tools: int = 0
    around_message: int = 8
    around_prompt: int = 16

    def count(self, text: str) -> int:
        """Return the tokens a text may have at most."""
        return math.ceil(len(text.encode("utf-8", "surrogatepass")) / self.bytes_per_token)

    def prompt(self, messages: list[ChatMessage]) -> list[Message]:
        """Return the messages as they are sent."""
        return [plain(message) for message in messages]

    def length(self, prompt: list[Message]) -> int:
        """Return the tokens that messages may have at most."""
        texts = sum(self.count(message["content"]) + self.around_message for message in prompt)
        return texts + math.ceil(self.tools / self.bytes_per_token) + self.around_prompt


class ToolNames:
    """Names that functions may have with an upstream, for the tools of a turn, both ways."""

    def __init__(self, tools: Sequence[ToolName]) -> None:
        self._function: dict[ToolName, str] = {}
        self._tool: dict[str, ToolName] = {}
        for tool in tools:
            name = stem = _NO_NAME.sub("_", tool)[:_LONGEST_NAME]
            number = 1
            while name in self._tool or name == ANSWER:
                number += 1
                name = f"{stem[: _LONGEST_NAME - 4]}_{number}"
            self._function[tool], self._tool[name] = name, tool

    def function(self, tool: ToolName) -> str:
        """Return the function that stands for a tool."""
        return self._function[tool]

    def tool(self, function: str) -> ToolName | None:
        """Return the tool that a function stands for; None if the model made it up."""
        return self._tool.get(function)


def tools_of(turn: Turn, registered: Registered) -> list[dict[str, Any]]:
    """Return the functions a model may choose among; that no tool is needed is one, too."""
    names = ToolNames(turn.tools)
    functions = [
        _function(
            names.function(tool),
            BUILT_IN[tool].description if tool in BUILT_IN else registered[tool].description,
            BUILT_IN[tool].input_schema if tool in BUILT_IN else registered[tool].input_schema,
        )
        for tool in turn.tools
    ]
    if turn.may_answer:
        nothing = {"type": "object", "properties": {}, "additionalProperties": False}
        functions.append(_function(ANSWER, "no tool is needed any more", nothing))
    return functions


def _function(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    told = {"description": description} if description else {}
    return {"type": "function", "function": {"name": name, **told, "parameters": schema}}


def parameters_of(
    call: GenerateInput, options: UpstreamOptions, tools: Sequence[Any], schema: str | None
) -> dict[str, Any]:
    """Return everything but the messages.

    What the caller left as it is by default is not said. What differs is always said, also what
    OpenAI's own models do not know: an upstream that cannot do it refuses, instead of doing
    something else in silence.
    """
    sampling, choosing = call.sampling, call.turn.purpose == "tool_call"
    body: dict[str, Any] = {options.max_tokens_parameter: call.max_tokens}
    if choosing:
        body |= {"temperature": 0.0, "tools": list(tools), "tool_choice": "required"}
        body["parallel_tool_calls"] = call.turn.parallel > 1
    else:
        body["temperature"] = sampling.temperature
        for name, usual in (
            ("presence_penalty", 0.0),
            ("frequency_penalty", 0.0),
            ("repetition_penalty", 1.0),
            ("min_tokens", 0),
            ("ignore_eos", False),
        ):
            if getattr(sampling, name) != usual:
                body[name] = getattr(sampling, name)
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if schema is not None and call.chosen.constrained:
            body["response_format"] = _response_format(schema)
    for name, usual in (("top_p", 1.0), ("top_k", 0), ("seed", 0)):
        if getattr(sampling, name) != usual:
            body[name] = getattr(sampling, name)
    return {name: value for name, value in body.items() if name not in options.leave_out}


def _response_format(schema: str) -> dict[str, Any]:
    read = json.loads(schema)
    named: dict[str, Any] = {"name": "answer", "schema": read}
    if _is_strict(read):
        named["strict"] = True
    return {"type": "json_schema", "json_schema": named}


def _is_strict(schema: Any) -> bool:
    """Tell whether OpenAI holds a model to a schema: closed objects, every property required."""
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or properties is not None:
        if schema.get("additionalProperties") is not False:
            return False
        if set(schema.get("required", ())) != set(properties or {}):
            return False
    return all(map(_is_strict, schema.values()))


def choice_text(turn: Turn, pieces: Sequence[ToolPiece]) -> str:
    """Return a choice as the journal keeps it: the JSON that `activities.toolbox` reads.

    An upstream that answers with text, although it was told to choose, has chosen to answer.
    """
    names = ToolNames(turn.tools)
    calls: dict[int, tuple[str, str]] = {}
    for piece in pieces:
        name, arguments = calls.get(piece.index, ("", ""))
        calls[piece.index] = (name + (piece.name or ""), arguments + piece.arguments)
    said = [_choice(names, *calls[index]) for index in sorted(calls)] or [{"tool": ANSWER}]
    chosen = [each for each in said if each != {"tool": ANSWER}] or said
    return json.dumps(chosen if turn.parallel > 1 else chosen[0], ensure_ascii=False)


def _choice(names: ToolNames, function: str, written: str) -> dict[str, Any]:
    if function == ANSWER:
        return {"tool": ANSWER}
    try:
        arguments = json.loads(written or "{}")
    except (ValueError, RecursionError):
        # Cut off, most likely: no valid choice, and the loop goes on to the answer.
        arguments = None
    tool = names.tool(function)
    if tool in BUILT_IN and isinstance(arguments, dict):
        return {"tool": tool, **arguments}
    return {"tool": tool, "arguments": arguments}
