"""Fit a conversation into a window, counted by the model's own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from activities.transcript import Unit
from inference.templates import encode_chat
from inference.tokenizers import ModelTokenizer
from workflows.contracts import PromptPart

__all__ = ["Trimmed", "trim"]


@dataclass(frozen=True)
class Trimmed:
    """A prompt that fits: its token ids, and where each part came from."""

    ids: list[int]
    parts: tuple[PromptPart, ...]
    dropped: int


def trim(units: Sequence[Unit], tokenizer: ModelTokenizer, *, limit: int) -> Trimmed | None:
    """Drop units, lowest rank first, until the rendered conversation has at most `limit` tokens.

    The whole is rendered and counted exactly, because a template adds tokens of its own around
    every message; what it is over is dropped by the parts' own counts and their share of that, and
    counted again.

    Returns:
        The prompt, or None if the pinned units alone do not fit.
    """
    counts = [
        [tokenizer.count(message.content) for _, _, message in unit.messages] for unit in units
    ]
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
        ids = encode_chat(
            tokenizer, [message for n in sorted(kept) for _, _, message in units[n].messages]
        )
        over = len(ids) - limit
        if over <= 0:
            return Trimmed(
                ids=ids,
                parts=_provenance(units, counts, kept),
                dropped=len(units) - len(kept),
            )
        if not droppable:
            return None
        # What the template puts around a message goes with it: dropping by the texts alone would
        # drop far more than must go, where texts are short.
        around = (len(ids) - texts) // sum(len(units[number].messages) for number in kept)
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
