"""Fit a conversation into a window, counted by the model's own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from activities.transcript import Unit
from inference.templates import ChatMessage, encode_chat
from inference.tokenizers import ModelTokenizer
from workflows.contracts import PromptPart

__all__ = ["Ruler", "Trimmed", "trim", "trim_by"]

Prompt = TypeVar("Prompt")


class Ruler(Protocol[Prompt]):
    """Makes a prompt of messages, and says how long it is, in tokens."""

    def count(self, text: str) -> int:
        """Return the tokens of a text alone."""

    def prompt(self, messages: list[ChatMessage]) -> Prompt:
        """Return the prompt that messages make."""

    def length(self, prompt: Prompt) -> int:
        """Return the tokens of a prompt."""


@dataclass(frozen=True)
class Trimmed(Generic[Prompt]):
    """A prompt that fits, its length, and where each part came from."""

    prompt: Prompt
    tokens: int
    parts: tuple[PromptPart, ...]
    dropped: int


@dataclass(frozen=True)
class _Exactly:
    """By the model's own tokenizer and template."""

    tokenizer: ModelTokenizer

    def count(self, text: str) -> int:
        return self.tokenizer.count(text)

    def prompt(self, messages: list[ChatMessage]) -> list[int]:
        return encode_chat(self.tokenizer, messages)

    def length(self, prompt: list[int]) -> int:
        return len(prompt)


def trim(
    units: Sequence[Unit], tokenizer: ModelTokenizer, *, limit: int
) -> Trimmed[list[int]] | None:
    """Trim to what a model's own tokenizer counts; see `trim_by`."""
    return trim_by(units, _Exactly(tokenizer), limit=limit)


def trim_by(units: Sequence[Unit], ruler: Ruler[Prompt], *, limit: int) -> Trimmed[Prompt] | None:
    """Drop units, lowest rank first, until the rendered conversation has at most `limit` tokens.

    The whole is rendered and counted exactly, because a template adds tokens of its own around
    every message; what it is over is dropped by the parts' own counts and their share of that, and
    counted again.

    Returns:
        The prompt, or None if the pinned units alone do not fit.
    """
    counts = [[ruler.count(message.content) for _, _, message in unit.messages] for unit in units]
    droppable = sorted(
        (number for number, unit in enumerate(units) if not unit.pinned),
        key=lambda number: units[number].rank,
        reverse=True,
    )
    kept = set(range(len(units)))
    # What the texts alone are over need not be rendered to be found out.
    texts = sum(map(sum, counts))
    while texts > limit and droppable:
        gone = droppable.pop()
        kept.discard(gone)
        texts -= sum(counts[gone])
    while True:
        prompt = ruler.prompt(
            [message for n in sorted(kept) for _, _, message in units[n].messages]
        )
        length = ruler.length(prompt)
        over = length - limit
        if over <= 0:
            return Trimmed(
                prompt=prompt,
                tokens=length,
                parts=_provenance(units, counts, kept),
                dropped=len(units) - len(kept),
            )
        if not droppable:
            return None
        # What the template puts around a message goes with it: dropping by the texts alone would
        # drop far more than must go, where texts are short.
        around = (length - texts) // sum(len(units[number].messages) for number in kept)
        while over > 0 and droppable:
            gone = droppable.pop()
            kept.discard(gone)
            texts -= sum(counts[gone])
            over -= max(1, sum(counts[gone]) + around * len(units[gone].messages))


def _provenance(
    units: Sequence[Unit], counts: list[list[int]], kept: set[int]
) -> tuple[PromptPart, ...]:
    return tuple(
        PromptPart(kind=kind, source=source, tokens=tokens, kept=number in kept)
        for number, unit in enumerate(units)
        for (kind, source, _), tokens in zip(unit.messages, counts[number], strict=True)
    )
