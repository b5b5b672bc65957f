"""A task's conversation in the order it was said: in its session before it, in its request, to it.

What was said to the task while it ran divides it into rounds: a question, or several that came at
once, what tools answered to it, and its answer. Only the last round is still open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from store.tasks import StepRecord, Transcript

__all__ = ["Conversation", "Spoken", "conversation_of"]


@dataclass(frozen=True)
class Spoken:
    """One message.

    Attributes:
        source: What it is told apart by.
        pinned: Kept however short the window gets.
    """

    source: str
    role: str
    content: str
    pinned: bool = False


@dataclass(frozen=True)
class Conversation:
    """What was said, as far as it is over, and what is to be answered.

    Attributes:
        past: Messages, and the steps that were taken between them, oldest first.
        waiting: What came together with the question, before it.
        question: What is to be answered.
        steps: The steps that were taken for it.
        used_tools: Whether a tool answered since the last answer.
    """

    past: tuple[Spoken | StepRecord, ...]
    waiting: tuple[Spoken, ...]
    question: Spoken
    steps: tuple[StepRecord, ...]
    used_tools: bool


def conversation_of(transcript: Transcript) -> Conversation:
    """Return a task's conversation."""
    before = [
        Spoken(f"session message {each.number}", each.role, each.content)
        for each in transcript.earlier
    ]
    submitted = [
        Spoken(f"message {number}", each["role"], each["content"], each.get("pinned", False))
        for number, each in enumerate(_submitted(transcript.input), start=1)
    ]
    last = max((each.at_step for each in transcript.said), default=0)
    told = [
        (each.at_step, Spoken(f"task message {each.number}", "user", each.content))
        for each in transcript.said
    ]
    *waiting, question = [each for at, each in told if at == last] or [submitted.pop()]
    past = _in_order(
        [step for step in transcript.steps if step.step < last],
        [(at, each) for at, each in told if at < last],
    )
    return Conversation(
        past=(*before, *submitted, *past),
        waiting=tuple(waiting),
        question=question,
        steps=tuple(step for step in transcript.steps if step.step >= last),
        used_tools=_used_tools(transcript.steps),
    )


def _in_order(
    steps: Sequence[StepRecord], told: Sequence[tuple[int, Spoken]]
) -> list[Spoken | StepRecord]:
    """Merge: what was said right before a step stands before it."""
    # Of one number, messages come first; among them the order stays.
    merged = [(at, 0, each) for at, each in told] + [(step.step, 1, step) for step in steps]
    merged.sort(key=lambda each: each[:2])
    return [each for _, _, each in merged]


def _used_tools(steps: Sequence[StepRecord]) -> bool:
    for step in reversed(steps):
        if step.answered:
            return False
        if step.calls:
            return True
    return False


def _submitted(request: dict[str, Any]) -> list[dict[str, Any]]:
    if request.get("input") is not None:
        return [{"role": "user", "content": str(request["input"])}]
    return list(request["messages"])
