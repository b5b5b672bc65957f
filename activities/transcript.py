"""A task's conversation as units that are kept or dropped as a whole.

A tool result and the call it answers are one unit, so that trimming cannot part them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from activities.conversation import Spoken, conversation_of
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
# Above the rank of every tool result.
_LAST = 1_000_000.0
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
    return conversation_of(transcript).question.content


def conversation_units(
    transcript: Transcript,
    turn: Turn,
    passages: Sequence[Unit],
    registered: Registered = _NONE,
    *,
    described: bool = True,
) -> list[Unit]:
    """Return the units in the order the model reads them.

    What was retrieved and what tools answered stands right before the question, and the question
    with its instruction comes last: a small model follows what it read last.

    Args:
        transcript: What was said.
        turn: What the call is for.
        passages: What was retrieved.
        registered: Definitions of the turn's registered tools.
        described: Whether a choice among tools is asked for in words; else the request has them.
    """
    said = conversation_of(transcript)
    system = transcript.input.get("system")
    asked = ChatMessage(
        role="user",
        content=said.question.content
        + _instruction(turn, said.used_tools, transcript.input, registered, described),
    )
    return [
        *([_single("system", "request", "system", str(system), pinned=True)] if system else []),
        *_past(said.past),
        # What nobody has answered yet is dropped after everything else.
        *(_spoken(each, rank=_LAST + number) for number, each in enumerate(said.waiting)),
        *passages,
        *_results(said.steps),
        Unit(messages=(("message", said.question.source, asked),), pinned=True),
        *_rejected(transcript, turn),
    ]


def _past(past: Sequence[Spoken | StepRecord]) -> list[Unit]:
    """What is over. Newer is more valuable, and all of it goes before passages and results."""
    units: list[Unit] = []
    for are_steps, group in groupby(past, lambda each: isinstance(each, StepRecord)):
        if not are_steps:
            units.extend(_spoken(each) for each in group if isinstance(each, Spoken))
            continue
        steps = [each for each in group if isinstance(each, StepRecord)]
        units.extend(_results(steps))
        units.extend(
            _spoken(Spoken(f"step {each.step}", "assistant", each.text))
            for each in steps
            if each.answered
        )
    return [
        replace(unit, rank=number / (len(units) + 1)) for number, unit in enumerate(units, start=1)
    ]


def _spoken(said: Spoken, *, rank: float = 0.0) -> Unit:
    kind: Kind = "system" if said.role == "system" else "message"
    return _single(kind, said.source, said.role, said.content, pinned=said.pinned, rank=rank)


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


def _instruction(
    turn: Turn, results: bool, request: dict[str, Any], registered: Registered, described: bool
) -> str:
    if turn.purpose == "tool_call":
        if not described:
            return ""
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
