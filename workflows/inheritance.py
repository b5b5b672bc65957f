"""Where the loop of a fork starts: the state its parent's loop had before a step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from workflows.contracts import LoopState, TaskInput, ToolCall, Turn, Usage
from workflows.loop import Loop
from workflows.transcript import digest_of, extend, said

__all__ = ["CannotInherit", "PastCall", "PastMessage", "PastStep", "inherit"]


@dataclass(frozen=True)
class PastCall:
    """A tool call that a finished step chose.

    Attributes:
        place: Which of its calls, from 1; None where a step has one at most.
        result: What the tool answered; None if it has not, or was not called.
    """

    call: ToolCall
    result: str | None = None
    place: int | None = None


@dataclass(frozen=True)
class PastStep:
    """What a finished step said and learned, as its row has it.

    Attributes:
        calls: The tool calls it chose, all of them, in their order.
        rejected: If it was an answer: why it did not obey the schema it had to; None if it did.
        kept: It was an answer, and did not end the task, since something was said to that.
    """

    text: str
    model: str
    calls: tuple[PastCall, ...] = ()
    rejected: str | None = None
    kept: bool = False


@dataclass(frozen=True)
class PastMessage:
    """What was said to the task, and the first step that saw it."""

    number: int
    content: str
    at_step: int


class CannotInherit(Exception):
    """Nothing can go on after some step.

    Attributes:
        step: Number of that step.
        why: `answered`: it was the answer; `tool_unanswered`: the tool it called has not answered.
    """

    def __init__(self, step: int, why: str) -> None:
        super().__init__(f"step {step}: {why}")
        self.step = step
        self.why = why


def inherit(
    task: TaskInput, steps: Sequence[PastStep], messages: Sequence[PastMessage] = ()
) -> tuple[LoopState, Turn]:
    """Return the state of a loop that took these steps, and what its next call is for.

    The very loop is walked through, so digest, counters and choices are those it had itself. What
    the steps cost is not the fork's: cost and tokens begin at nothing.

    Args:
        task: The fork: its plan, and the digest of its own question.
        steps: The steps it inherits, from the first on.
        messages: What was said to the other task until its next step began, in order.

    Raises:
        CannotInherit: No step can follow.
    """
    loop = Loop(task.plan, LoopState(digest=task.prompt_digest, chars=task.prompt_chars))
    for step in steps:
        _hear(loop, messages)
        turn = loop.next_turn()
        loop.step += 1
        loop.spoke(
            digest=digest_of(step.text),
            chars=len(step.text),
            model=step.model,
            cached=True,
            billed_usd=Decimal(0),
            usage=Usage(),
        )
        if turn.purpose == "answer":
            if step.kept:
                loop.kept()
            elif step.rejected is not None:
                loop.rejected(step.rejected)
            else:
                raise CannotInherit(loop.step, "answered")
            continue
        made = [step.calls[n - 1] for n, _ in loop.wants([past.call for past in step.calls])]
        for past in made:
            if past.result is None:
                raise CannotInherit(loop.step, "tool_unanswered")
            loop.heard(
                past.call.name,
                digest=digest_of(past.result),
                chars=len(past.result),
                ok=True,
                place=past.place,
                # Rows do not tell where an answer came from: rather too often than too seldom.
                untrusted=past.call.name != "calculator",
            )
    _hear(loop, messages)
    state = loop.state(paused=False, started_at=None)
    lines = (f"steps 1 to {loop.step} inherited",) if steps else ()
    return state.model_copy(update={"lines": lines}), loop.next_turn()


def _hear(loop: Loop, messages: Sequence[PastMessage]) -> None:
    """Have the loop told of what was said before its next step."""
    for message in messages:
        if message.at_step == loop.step + 1:
            loop.told(
                number=message.number,
                digest=extend(loop.digest, said("user", message.content)),
                chars=len(message.content),
            )
