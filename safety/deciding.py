"""Which rule decides about which span of one text."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from safety.detectors import detector
from safety.errors import DetectorFailed
from safety.policy import Rule
from safety.text import Text

__all__ = ["Decided", "Span", "decide"]


class Span(NamedTuple):
    """A span of a text that a rule decides about. None overlaps another.

    Attributes:
        start: Its first character.
        end: The first behind it.
        rule: The rule.
        label: What was found.
    """

    start: int
    end: int
    rule: Rule
    label: str


@dataclass(slots=True)
class Decided:
    """What rules say about one text.

    Attributes:
        spans: What is decided, in order of position.
        matched: For each rule's id where it matched, decisive or not: (start, end).
        failed: Ids of rules that could not be applied.
    """

    spans: list[Span] = field(default_factory=list)
    matched: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def decide(
    text: Text,
    rules: Sequence[Rule],
    *,
    ours: Iterable[tuple[int, int]] = (),
    starts: Mapping[str, int] | None = None,
    go_on: bool,
) -> Decided:
    """Apply rules in order to one text.

    Args:
        text: The text.
        rules: Those that apply where it comes from; none of them asks a model.
        ours: Where tokens of ours stand; no rule has a say there.
        starts: For each rule's id where it begins to look; the start of the text if not said.
        go_on: A rule that cannot be applied is left out and told of, instead of raising.

    Raises:
        DetectorFailed: A rule could not be applied.
    """
    decided = Decided()
    taken = sorted(ours)  # spans that nothing more is said about, in order, none overlapping
    exempt: list[tuple[int, int]] = []
    for rule in rules:
        try:
            found = sorted(
                detector(rule).find(text, (starts or {}).get(rule.id, 0)),
                key=lambda match: (match.start, -match.end, match.label),
            )
        except Exception as error:
            if go_on:
                decided.failed.append(rule.id)
                continue
            raise DetectorFailed(rule.id, type(error).__name__) from error
        decided.matched[rule.id] = [(match.start, match.end) for match in found]
        if rule.action == "allow":
            exempt = _merged(exempt, decided.matched[rule.id])
            continue
        for match in found:
            if _covers(exempt, match.start, match.end):
                continue
            for start, end in _rest(taken, match.start, match.end):
                insort(taken, (start, end))
                decided.spans.append(Span(start, end, rule, match.label))
    decided.spans.sort(key=lambda span: span.start)
    return decided


def _merged(spans: list[tuple[int, int]], more: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in order, those that overlap made one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted([*spans, *more]):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _covers(spans: list[tuple[int, int]], start: int, end: int) -> bool:
    """Whether one of the spans, which do not overlap, holds all of another."""
    at = bisect_left(spans, (start + 1,)) - 1
    return at >= 0 and spans[at][0] <= start and end <= spans[at][1]


def _rest(taken: list[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Return what of a span none of the taken ones holds."""
    rest: list[tuple[int, int]] = []
    at = max(0, bisect_left(taken, (start,)) - 1)
    while start < end and at < len(taken) and taken[at][0] < end:
        first, last = taken[at]
        if first > start:
            rest.append((start, first))
        start = max(start, last)
        at += 1
    if start < end:
        rest.append((start, end))
    return rest
