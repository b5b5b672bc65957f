"""A task's conversation as units that are kept or dropped as a whole.

A tool result and the call it answers are one unit, so that trimming cannot part them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from activities.toolbox import describe_tools
from inference.templates import ChatMessage
from store.tasks import StepRecord, Transcript
from workflows.contracts import Turn

__all__ = ["Unit", "conversation_units", "newest_question"]

Kind = Literal["system", "passage", "message", "tool_call", "tool_result", "instruction"]


@dataclass(frozen=True)
class Unit:
    """Messages that stand or fall together.

    Attributes:
        messages: With the kind and source of each, for the prompt's provenance.
        pinned: Never dropped.
        rank: Of the units that may be dropped, the one with the lowest rank goes first.
    """

    messages: tuple[tuple[Kind, str, ChatMessage], ...]
    pinned: bool = False
    rank: float = 0.0


def newest_question(transcript: Transcript) -> str:
    """Return the text of the newest user message."""
    messages = _submitted(transcript)
    return next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")


def conversation_units(transcript: Transcript, turn: Turn, passages: Sequence[Unit]) -> list[Unit]:
    """Return the units in the order the model reads them."""
    units: list[Unit] = []
    system = transcript.input.get("system")
    if system:
        units.append(_single("system", "request", "system", str(system), pinned=True))
    messages = _submitted(transcript)
    last = len(messages) - 1
    for number, message in enumerate(messages):
        if number == last:
            # Passages stand right before the question they were retrieved for.
            units.extend(passages)
        units.append(
            _single(
                "system" if message["role"] == "system" else "message",
                f"message {number + 1}",
                message["role"],
                message["content"],
                pinned=number == last or message.get("pinned", False),
                # Newer is more valuable; old messages go before passages, passages before steps.
                rank=number / (last + 1),
            )
        )
    units.extend(_step_unit(record) for record in transcript.steps if record.tool_call)
    if turn.purpose == "tool_call":
        units.append(
            _single(
                "instruction",
                "tools",
                "user",
                describe_tools(turn.tools, may_answer=turn.may_answer),
                pinned=True,
            )
        )
    elif any(record.tool_call for record in transcript.steps):
        units.append(
            _single(
                "instruction",
                "answer",
                "user",
                f"Use the results above to answer: {messages[-1]['content']}",
                pinned=True,
            )
        )
    return units


def _step_unit(record: StepRecord) -> Unit:
    assert record.tool_call is not None
    name = str(record.tool_call["name"])
    arguments = record.tool_call["arguments"]
    call = json.dumps({"tool": name, **arguments}, ensure_ascii=False)
    source = f"step {record.step}"
    messages: list[tuple[Kind, str, ChatMessage]] = [
        ("tool_call", source, ChatMessage(role="assistant", content=call))
    ]
    if record.tool_result is not None:
        messages.append(
            (
                "tool_result",
                source,
                ChatMessage(role="tool", content=record.tool_result, name=name),
            )
        )
    return Unit(messages=tuple(messages), rank=3.0 + record.step)


def _single(
    kind: Kind, source: str, role: str, content: str, *, pinned: bool = False, rank: float = 0.0
) -> Unit:
    return Unit(
        messages=((kind, source, ChatMessage(role=role, content=content)),),
        pinned=pinned,
        rank=rank,
    )


def _submitted(transcript: Transcript) -> list[dict[str, Any]]:
    request = transcript.input
    if request.get("input") is not None:
        return [{"role": "user", "content": str(request["input"])}]
    return list(request["messages"])
