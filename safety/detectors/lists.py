"""Lists: words and phrases found whole and in any case, and patterns in RE2's syntax."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from safety.detectors import Match
from safety.patterns import Pattern, compiled, compiled_for_policy, quoted, together
from safety.policy import Rule
from safety.text import Folded, Text

__all__ = ["make"]

# Alternatives of one pattern, at most.
_TOGETHER = 1000
_EDGE = r"[^\pL\pN\pM_]"


class Lists:
    """Finds the words and patterns of one rule."""

    def __init__(self, words: tuple[str, ...], patterns: tuple[str, ...], label: str) -> None:
        """Takes the rule's lists, and what its matches are called."""
        self._words = list(_whole_words(words))
        self._patterns = [compiled_for_policy(pattern) for pattern in patterns]
        self._any = together(patterns)
        self._label = label

    def find(self, text: Text, start: int) -> Iterator[Match]:
        """Yield the matches of each pattern."""
        if self._words:
            folded = text.lower
            first = folded.here(start)
            for words in self._words:
                # A character before the start may be the edge of a word that begins there.
                for begin, end in words.spans(folded.text, max(0, first - 1), group=1):
                    if begin >= first:
                        yield Match(*folded.given(begin, end), self._label)
        for index in self._any.matching(text.given) if self._any else range(len(self._patterns)):
            for begin, end in self._patterns[index].spans(text.given, start):
                yield Match(begin, end, self._label)


def make(rule: Rule) -> Lists:
    """Return the detector for a list."""
    return Lists(rule.words, rule.patterns, "ALLOWED" if rule.kind == "allow_list" else "DENIED")


def _whole_words(words: Iterable[str]) -> Iterator[Pattern]:
    """Yield patterns whose group 1 is one of the words, as no part of a longer one."""
    forms = {" ".join(Folded(word, lower=True).text.split()) for word in words} - {""}
    # The longest first: of two that begin at one place it is the one meant.
    ordered = sorted(forms, key=lambda form: (-len(form), form))
    for left in (True, False):  # a word that begins with a sign, as +1, may follow a letter
        for right in (True, False):
            some = [
                form
                for form in ordered
                if (_lettered(form[0]), _lettered(form[-1])) == (left, right)
            ]
            before = f"(?:^|{_EDGE})" if left else ""
            behind = f"(?:$|{_EDGE})" if right else ""
            for at in range(0, len(some), _TOGETHER):
                yield from _either(some[at : at + _TOGETHER], before, behind)


def _either(forms: list[str], before: str, behind: str) -> Iterator[Pattern]:
    """Yield one pattern for some phrases, or more if one would be too large."""
    try:
        yield compiled(f"{before}({'|'.join(map(_phrase, forms))}){behind}")
    except ValueError:
        if len(forms) == 1:
            raise
        half = len(forms) // 2
        yield from _either(forms[:half], before, behind)
        yield from _either(forms[half:], before, behind)


def _phrase(form: str) -> str:
    """Return a pattern for a phrase, blanks in it of any kind and number."""
    return r"\s+".join(map(quoted, form.split()))


def _lettered(character: str) -> bool:
    return character.isalnum() or character == "_"
