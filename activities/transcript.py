"""A task's conversation as units that are kept or dropped as a whole.

A tool result and the call it answers are one unit, so that trimming cannot part them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from activities.output import instruction, quoted, repair
from activities.toolbox import Registered, describe_tools
from inference.templates import ChatMessage
from store.step_calls import ChosenCall
from store.tasks import StepRecord, Transcript
from workflows.contracts import Turn

__all__ = ["PROMPT_FORMAT", "Unit", "conversation_units", "newest_question"]

# Part of every cache key. Raise it whenever an equal conversation is shown to a model differently,
# or its answer is bound by another grammar.
PROMPT_FORMAT = 3

_NONE: Registered = {}
_UNANSWERED = "no answer"
_TOO_OFTEN = "not called: this tool may be called no more often"

Kind = Literal["system", "passage", "message", "tool_result"]


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


def conversation_units(
    transcript: Transcript,
    turn: Turn,
    passages: Sequence[Unit],
    registered: Registered = _NONE,
) -> list[Unit]:
    """Return the units in the order the model reads them.

    What was retrieved and what tools answered stands right before the question, and the question
    with its instruction comes last: a small model follows what it read last.
    """
    units: list[Unit] = []
    system = transcript.input.get("system")
    if system:
        units.append(_single("system", "request", "system", str(system), pinned=True))
    *earlier, question = _submitted(transcript)
    units.extend(
        _single(
            "system" if message["role"] == "system" else "message",
            f"message {number}",
            message["role"],
            message["content"],
            pinned=message.get("pinned", False),
            # Newer is more valuable; messages go before passages, passages before tool results.
            rank=number / (len(earlier) + 1),
        )
        for number, message in enumerate(earlier, start=1)
    )
    units.extend(passages)
    results = list(_results(transcript.steps))
    units.extend(results)
    units.append(
        Unit(
            messages=(
                (
                    "message",
                    f"message {len(earlier) + 1}",
                    ChatMessage(
                        role="user",
                        content=question["content"]
                        + _instruction(turn, bool(results), transcript.input, registered),
                    ),
                ),
            ),
            pinned=True,
        )
    )
    units.extend(_rejected(transcript, turn))
    return units


def _rejected(transcript: Transcript, turn: Turn) -> list[Unit]:
    """Answers that did not obey the schema, each with what is wrong; the newest must be seen."""
    said = {record.step: record.text for record in transcript.steps}
    return [
        Unit(
            messages=(
                (
                    "message",
                    f"step {rejected.step}",
                    ChatMessage(role="assistant", content=quoted(said.get(rejected.step, ""))),
                ),
                (
                    "message",
                    f"step {rejected.step}",
                    ChatMessage(role="user", content=repair(rejected.problem)),
                ),
            ),
            pinned=rejected is turn.rejected[-1],
            rank=2.0 + rejected.step,
        )
        for rejected in turn.rejected
    ]


def _instruction(turn: Turn, results: bool, request: dict[str, Any], registered: Registered) -> str:
    if turn.purpose == "tool_call":
        return "\n\n" + describe_tools(
            turn.tools,
            may_answer=turn.may_answer,
            registered=registered,
            parallel=turn.parallel,
        )
    schema = request.get("output_schema")
    return ("\n\nUse the results above to answer." if results else "") + (
        instruction(schema) if schema else ""
    )


def _results(steps: Sequence[StepRecord]) -> Iterator[Unit]:
    """What tools answered, in the order of the steps and of their choices."""
    asked: list[tuple[str, dict[str, Any]]] = []
    for record in steps:
        first = True
        for call in record.calls:
            known = (call.name, call.arguments) in asked
            asked.append((call.name, call.arguments))
            if call.place is None:
                told = call.result if call.result is not None else _UNANSWERED
                yield _result(record.step, call, told)
            elif call.result is not None or not known:
                told = call.result if call.result is not None else _TOO_OFTEN
                yield _result(record.step, call, told, also=not first)
                first = False


def _result(step: int, call: ChosenCall, told: str, *, also: bool = False) -> Unit:
    """A tool's answer together with the call it answers: one message, which nothing can part."""
    asked = ", ".join(str(value) for value in call.arguments.values())
    content = f"({asked}) {told}"
    return Unit(
        messages=(
            (
                "tool_result",
                f"step {step}" if call.place is None else f"step {step}, call {call.place}",
                # What was asked for at the same time is told apart from what came of it.
                ChatMessage(
                    role="tool", name=call.name, content=f"also {content}" if also else content
                ),
            ),
        ),
        rank=3.0 + step + (call.place or 0) / 100,
    )


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
