r"""The words a prompt puts into the scripted engine's mouth.

A directive stands anywhere in the prompt:

    [[say text="Hello" tokens=1000 pace_ms=5 first_ms=50]]
    [[call text="{\"tool\": \"calculator\"}"]]

`say` is for free text, `call` for requests with a JSON schema or grammar; where a turn may choose
several tool calls, its text is a list of them. The n-th directive of
a kind serves the n-th turn of the conversation, counted by the assistant turns and the tools'
results before it; the last one serves all later turns; `turn=N` (from 1) pins it. Attributes:

    text       what to say, as a JSON string; `{next}` in it is one more than the last number of
               the newest tool result in the prompt, or 0: a loop of any length in one directive
    tokens     repeat or cut the text to this many tokens; a token is one byte
    pace_ms    milliseconds between tokens; 0 gives them as fast as they can be taken
    first_ms   milliseconds before the first token
    die        after this many tokens the model process dies at once
    freeze     after this many tokens nothing more comes, nor an end
    freeze_process  after this many tokens the whole process stops answering
    fail       after this many tokens the engine reports a breakdown
    hang_end   true: every token comes, the end never
    once       a name: the fault happens the first time only, across restarts
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

_DIRECTIVE = re.compile(r"\[\[(say|call)((?:\s+\w+=(?:\"(?:[^\"\\]|\\.)*\"|[^\s\]\"]+))*)\s*\]\]")
_ATTRIBUTE = re.compile(r"(\w+)=(\"(?:[^\"\\]|\\.)*\"|[^\s\]\"]+)")
_ASSISTANT = "<|im_start|>assistant"
# A tool's result stands for the turn that asked for it, which a prompt may leave out.
_RESULT = "<|im_start|>user\nResult of "
# Of several calls of one turn, the further results.
_ALSO = re.compile(re.escape(_RESULT) + r"[^\n:]*: also \(")
_NEXT = "{next}"
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Script:
    """One turn as it will be played; see the module's text for the fields."""

    text: str = "OK."
    tokens: int | None = None
    pace_ms: float = 0.0
    first_ms: float = 0.0
    die: int | None = None
    freeze: int | None = None
    freeze_process: int | None = None
    fail: int | None = None
    hang_end: bool = False
    once: str | None = None
    turn: int | None = None

    @property
    def faulty(self) -> bool:
        """Whether something goes wrong in it."""
        faults = (self.die, self.freeze, self.freeze_process, self.fail)
        return self.hang_end or any(fault is not None for fault in faults)

    def healthy(self) -> Script:
        """The same words without the fault."""
        return Script(self.text, self.tokens, self.pace_ms, self.first_ms)

    def counting(self, prompt: str) -> Script:
        """The same with `{next}` filled in."""
        if _NEXT not in self.text:
            return self
        result = prompt.rpartition(_RESULT)[2] if _RESULT in prompt else ""
        numbers = _NUMBER.findall(result.partition("<|im_start|>")[0])
        return replace(
            self, text=self.text.replace(_NEXT, str(int(numbers[-1]) + 1 if numbers else 0))
        )

    def output(self) -> bytes:
        """Everything that will be said; one byte is one token."""
        said = self.text.encode()
        if self.tokens is None or not said:
            return said
        return (said * (self.tokens // len(said) + 1))[: self.tokens]


def read_script(prompt: str, json_schema: str | None, grammar: str | None) -> Script:
    """Finds what to say now.

    Args:
        prompt: The whole prompt as text.
        json_schema: The request's schema, if any; without a directive its smallest instance
            is said, so that any caller gets valid output.
        grammar: The request's grammar, if any.

    Raises:
        ValueError: A directive has an attribute that does not exist or cannot be read.
    """
    # The last opened assistant turn is the one to play.
    results = prompt.count(_RESULT) - len(_ALSO.findall(prompt))
    turn = max(prompt.count(_ASSISTANT) + results, 1)
    constrained = json_schema is not None or grammar is not None
    found: list[tuple[str, Script]] = [
        (match[1], _script(match[2])) for match in _DIRECTIVE.finditer(prompt)
    ]
    scripts = [script for kind, script in found if (kind == "call") == constrained]
    pinned = [script for script in scripts if script.turn == turn]
    if pinned:
        return pinned[0].counting(prompt)
    ordered = [script for script in scripts if script.turn is None]
    if ordered:
        return ordered[min(turn, len(ordered)) - 1].counting(prompt)
    if json_schema is not None:
        return Script(text=json.dumps(smallest_instance(json.loads(json_schema))))
    return Script()


def _script(attributes: str) -> Script:
    chosen: dict[str, Any] = {}
    for name, raw in _ATTRIBUTE.findall(attributes):
        value = json.loads(raw) if raw.startswith('"') else raw
        if name in ("text", "once"):
            chosen[name] = str(value)
        elif name in ("pace_ms", "first_ms"):
            chosen[name] = float(value)
        elif name == "hang_end":
            chosen[name] = str(value).lower() == "true"
        else:
            chosen[name] = int(value)
    try:
        return Script(**chosen)
    except TypeError as error:
        raise ValueError(f"unknown attribute in directive{attributes}") from error


def smallest_instance(schema: Any, root: Any = None) -> Any:
    """A small JSON value that obeys the schema (the parts of JSON Schema tools use)."""
    root = schema if root is None else root
    if not isinstance(schema, dict):
        return None
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return smallest_instance(target, root)
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return smallest_instance(schema[key][0], root)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "object" if "properties" in schema else "null")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {
            name: smallest_instance(properties.get(name), root)
            for name in schema.get("required", ())
        }
    if kind == "array":
        return [smallest_instance(schema.get("items"), root)] * int(schema.get("minItems", 0))
    if kind == "string":
        return "x" * int(schema.get("minLength", 0))
    return {
        "integer": schema.get("minimum", 0),
        "number": schema.get("minimum", 0),
        "boolean": False,
    }.get(kind)
