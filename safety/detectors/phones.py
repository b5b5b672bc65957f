"""Phone numbers: with + those of every country, without it those of the countries that are named.

A number in its national form is taken for one where it is written like one: in groups, with the
0 that its country dials before it, or behind a word such as `phone`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import phonenumbers

from safety.detectors.numbers import accounts
from safety.patterns import compiled

__all__ = ["Phones"]

# Where no region is named.
_REGIONS = ("US", "GB", "DE", "FR", "IN")
_CANDIDATE = compiled(r"\+?\(?[0-9](?:[ \t ().\-/]{0,3}[0-9]){6,}")
_GROUPS = 8
_GROUP = re.compile(r"[0-9]+")
_NO_PHONE = re.compile(
    r"\d{4}[-./]\d{1,2}[-./]\d{1,2}\b|\d{1,2}[-./]\d{1,2}[-./]\d{4}\b"  # dates
    r"|\d{1,3}(\.\d{1,3}){3}\Z"  # addresses
    r"|\d{3}-\d{2}-\d{4}\b"  # social security
    r"|[1-9]\d{0,2}( \d{3})+\Z"  # 1 000 000
    r"|\d+\.\d+\Z"  # 3.14159265
)
_ID = re.compile(r"(?i)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # a UUID begins like a number
_SAID = compiled(
    r"(?i)\b(?:phone|tel|telephone|call|mobile|cell|fax|whatsapp|sms|text|dial)\b[^0-9]{0,12}$"
)
_CONTEXT = 30
# An account's number as it may be written, and what stands before it.
_LONGEST_ACCOUNT = 3 + 34 * 4


class Phones:
    """Finds phone numbers."""

    def __init__(self, regions: tuple[str, ...]) -> None:
        """Takes the regions whose national numbers are found."""
        self._regions = tuple(
            (region, phonenumbers.ndd_prefix_for_region(region, True) or "")
            for region in regions or _REGIONS
        )
        prefixes = {prefix for _, prefix in self._regions}
        self._american = "1" in prefixes
        self._any_beginning = "" in prefixes
        self._beginnings = ("+", *prefixes)

    def find(self, text: str, start: int) -> Iterator[tuple[int, int]]:
        """Yield phone numbers."""
        for begin, end in _CANDIDATE.spans(text, start):
            yield from self._within(text, begin, end)

    def _within(self, text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield numbers within a run of groups of digits, the longest first."""
        groups = [found.span() for found in _GROUP.finditer(text, begin, end)]
        # What touches a letter is part of something else; its neighbours need not be. No word has
        # a + in it.
        before = text[begin - 1 : begin]
        if text[end : end + 1].isalnum():
            groups.pop()
        first = 0
        if before.isalnum() and not (before.isalpha() and text[begin] == "+"):
            account = _account_end(text, begin)
            first = max(1, sum(group[0] < account for group in groups))
        while first < len(groups):
            last = self._last(text, groups, first, begin)
            if last is None:
                first += 1
                continue
            yield self._begin(text, groups[first][0], begin), groups[last - 1][1]
            first = last

    def _last(self, text: str, groups: list[tuple[int, int]], first: int, least: int) -> int | None:
        """Return the group behind the longest number that begins with a group."""
        begin = self._begin(text, groups[first][0], least)
        lengths = self._lengths(text[begin : groups[first][1]])
        digits = 0
        fitting: list[int] = []
        for last in range(first, min(len(groups), first + _GROUPS)):
            start, end = groups[last]
            digits += end - start
            # Digits that stand alone are a list, and no number.
            if digits in lengths and digits >= 2 * (last - first):
                fitting.append(last + 1)
        return next(
            (
                last
                for last in reversed(fitting)
                if self._is_number(text, begin, groups[last - 1][1], last - first)
            ),
            None,
        )

    def _lengths(self, beginning: str) -> range:
        """Return how many digits a number can have that begins so: for most that are none, none."""
        if self._any_beginning or beginning.lstrip("(").startswith(self._beginnings):
            return range(7, 16)
        return range(10, 11) if self._american else range(0)

    @staticmethod
    def _begin(text: str, begin: int, least: int) -> int:
        """Return where a number begins whose first digit is at `begin`."""
        while begin > least and text[begin - 1] in "+(":
            begin -= 1
        return begin

    def _is_number(self, text: str, begin: int, end: int, groups: int) -> bool:
        written = text[begin:end]
        digits = sum(map(str.isdigit, written))
        if "+" in written[:2]:
            return _valid(written, None)
        joined = text[begin - 1 : begin] in ("-", ".", "/", "#", "$", "€", "£")
        if joined or _NO_PHONE.match(written) or _ID.match(text, begin):
            return False
        for region, prefix in self._regions:
            if prefix == "1":  # North America: ten digits, the 1 before them may be left out
                fits = digits == 10 or (digits == 11 and written.lstrip("(")[0] == "1")
                dialled = groups > 2 or "(" in written
            else:
                fits = not prefix or written.lstrip("(").startswith(prefix)
                dialled = groups > 1 or bool(prefix)
            if not fits:
                continue
            if not dialled and not _SAID.within(text[max(0, begin - _CONTEXT) : begin]):
                continue
            if _valid(written, region):
                return True
        return False


def _account_end(text: str, begin: int) -> int:
    """Return where the bank account ends whose country stands right before a place; 0: none."""
    start = max(0, begin - 3)
    return max(
        (start + stop for _, stop in accounts(text[start : start + _LONGEST_ACCOUNT], 0)), default=0
    )


@lru_cache(maxsize=4096)
def _valid(written: str, region: str | None) -> bool:
    try:
        return bool(phonenumbers.is_valid_number(phonenumbers.parse(written, region)))
    except phonenumbers.NumberParseException:
        return False
