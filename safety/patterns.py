"""Regular expressions that cannot explode: RE2's, whose search takes time linear in the text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import re2

__all__ = [
    "Pattern",
    "Patterns",
    "SearchedTooLong",
    "compiled",
    "quoted",
    "refuse_pattern",
    "together",
]

# What one compiled pattern may take; RE2 refuses what would need more. Ours are larger than those
# of a policy, which take the time of the process that is asked to set it.
_MAX_MEMORY = 8 << 20
_MAX_MEMORY_OF_A_POLICYS = 1 << 20
# One search is linear; as many searches as there are matches may not be, in a text made for it.
# Seconds of computing, for any text and for each of its characters.
_SECONDS = 1.0
_SECONDS_EACH = 1e-5


class SearchedTooLong(Exception):
    """A text has so many matches, so far apart to tell, that looking for more was given up."""


class Pattern:
    """A compiled expression that is searched for in text."""

    def __init__(self, expression: str, memory: int = _MAX_MEMORY) -> None:
        """Takes an expression in RE2's syntax; raises ValueError where RE2 does not take it."""
        options: Any = re2.Options()
        options.max_mem = memory
        options.log_errors = False  # they would quote the pattern
        try:
            self._searched: Any = re2.compile(expression.encode(), options)
        except (re2.error, UnicodeEncodeError) as error:
            raise ValueError(f"not a pattern in RE2's syntax: {_reason(error)}") from None

    def spans(self, text: str, start: int = 0, *, group: int = 0) -> Iterator[tuple[int, int]]:
        r"""Yield the spans of a group, the next search beginning where the one before ends.

        Args:
            text: Without surrogates.
            start: Where the first search begins; what is before it is seen by \b, and is no ^.
            group: Number of the group; what it does not take may be taken by the next match.
        """
        data = text.encode()
        plain = len(data) == len(text)
        at = start if plain else len(text[:start].encode())
        byte, character = at, start  # the same place, counted in either
        until = time.thread_time() + _SECONDS + _SECONDS_EACH * len(data)
        while (found := self._searched.search(data, at)) is not None:
            begin, end = found.span(group)
            if end <= max(at, begin):  # nothing was matched: patterns that may match it are refused
                at = found.end() + 1
            else:
                at = end
                if plain:
                    yield begin, end
                else:
                    character += len(data[byte:begin].decode())
                    stop = character + len(data[begin:end].decode())
                    yield character, stop
                    byte, character = end, stop
            if at > len(data):
                return
            if time.thread_time() > until:
                raise SearchedTooLong

    def within(self, text: str) -> bool:
        """Whether a text has a match."""
        return self._searched.search(text.encode()) is not None


class Patterns:
    """Some expressions, of which one search tells which have a match at all."""

    def __init__(self, expressions: Sequence[str]) -> None:
        """Takes expressions in RE2's syntax."""
        options: Any = re2.Options()
        options.max_mem = _MAX_MEMORY * 4
        self._set: Any = re2.Set.SearchSet(options)
        for expression in expressions:
            self._set.Add(expression.encode())
        self._set.Compile()

    def matching(self, text: str) -> list[int]:
        """Return which of the expressions match somewhere in a text, by their place in the list."""
        found: list[int] | None = self._set.Match(text.encode())
        return sorted(found or ())


def together(expressions: Sequence[str]) -> Patterns | None:
    """Return expressions as one search; None where that would save nothing or take too much."""
    if len(expressions) < 2:
        return None
    try:
        return Patterns(expressions)
    except re2.error:
        return None


@lru_cache(maxsize=2048)
def compiled(expression: str) -> Pattern:
    """Return an expression compiled, once."""
    return Pattern(expression)


def quoted(text: str) -> str:
    """Return an expression that matches this very text."""
    escaped: str = re2.escape(text)
    return escaped


@lru_cache(maxsize=2048)
def compiled_for_policy(expression: str) -> Pattern:
    """Return an expression of a policy compiled, once."""
    return Pattern(expression, _MAX_MEMORY_OF_A_POLICYS)


def refuse_pattern(expression: str) -> None:
    """Raise ValueError for an expression that RE2 does not take, or that matches everywhere."""
    if compiled_for_policy(expression).within(""):
        raise ValueError(f"the pattern {expression!r} matches the empty text, so everywhere")


def _reason(error: Exception) -> str:
    """Return RE2's reason: it comes as bytes."""
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
