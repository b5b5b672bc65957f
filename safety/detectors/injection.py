"""Prompt injection, by heuristics: what people write to turn a model against its instructions.

Every sign has a weight; signs that stand near each other add up, and a text counts from a
threshold on. Heuristics find the plain attempts and no others: what an agent may do is limited
by its tools, its approvals and its budget, not by this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from safety.detectors import Match
from safety.detectors.injection_signs import HIDDEN, SIGNS
from safety.patterns import Pattern, Patterns, compiled
from safety.policy import Rule
from safety.text import Folded, Text

__all__ = ["make"]

_THRESHOLD = 0.5
# Signs that are no further apart add up.
_NEAR = 400


class _Sign(NamedTuple):
    start: int
    end: int
    label: str
    weight: float


class Injection:
    """Finds signs of prompt injection that together reach a threshold."""

    def __init__(self, threshold: float) -> None:
        """Takes the score from 0 to 1 from which signs count."""
        self._threshold = threshold
        self._signs: list[tuple[str, float, Pattern]] = [
            (label, weight, compiled(expression))
            for label, (weight, expressions) in SIGNS.items()
            for expression in expressions
        ]
        self._all_signs = Patterns(
            [expression for _, expressions in SIGNS.values() for expression in expressions]
        )
        self._hidden = [(label, weight, compiled(form)) for label, weight, form in HIDDEN]

    def find(self, text: Text, start: int) -> Iterator[Match]:
        """Yield the signs of every place where they reach the threshold."""
        signs = sorted(self._all(text, text.lower, start))
        at = 0
        while at < len(signs):
            end = at + 1
            while end < len(signs) and signs[end].start - signs[end - 1].end <= _NEAR:
                end += 1
            together = signs[at:end]
            weights: dict[str, float] = {}
            for sign in together:
                weights[sign.label] = max(sign.weight, weights.get(sign.label, 0.0))
            innocent = 1.0
            for weight in weights.values():
                innocent *= 1 - weight
            if 1 - innocent >= self._threshold:
                yield from (Match(sign.start, sign.end, sign.label) for sign in together)
            at = end

    def _all(self, text: Text, folded: Folded, start: int) -> Iterator[_Sign]:
        first = folded.here(start)
        for index in self._all_signs.matching(folded.text):
            label, weight, pattern = self._signs[index]
            for begin, end in pattern.spans(folded.text, first):
                yield _Sign(*folded.given(begin, end), label, weight)
        if not text.given.isascii():
            for label, weight, pattern in self._hidden:
                for begin, end in pattern.spans(text.given, start):
                    yield _Sign(begin, end, label, weight)


def make(rule: Rule) -> Injection:
    """Return the detector for prompt injection."""
    return Injection(rule.threshold or _THRESHOLD)
