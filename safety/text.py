"""A text as detectors read it: without the disguises that Unicode offers, places kept."""

from __future__ import annotations

import re
import unicodedata
from functools import cached_property, lru_cache

__all__ = ["Folded", "Text"]

# Letters of other scripts that look like Latin ones, which disguise a word to a reader's eye only.
_ALIKE = str.maketrans(
    "авсԁеһіјкӏмнорԛгѕтυѵхуѡᴢαβεηικνορτχγωɑɡɩոıᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘꞯʀꜱᴛᴜᴠᴡʏłøđħŧƀɨʉɇɍɏⱥƚȼǥ",
    "abcdehijklmnopqrstuvxywzabenikvoptxywaginiabcdefghijklmnopqrstuvwylodhtbiueryalcg",
)
# What stands above, below and through letters of Latin, Greek and Cyrillic; in other scripts such
# signs are vowels, and part of the word.
_ACCENTS = re.compile("[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]")
_SURROGATES = re.compile("[\ud800-\udfff]")
# What Unicode calls Default_Ignorable_Code_Point: shown as nothing or as a blank.
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)


def _is_nothing(character: str) -> bool:
    return unicodedata.category(character) == "Cf" or bool(_IGNORABLE.match(character))


@lru_cache(maxsize=8192)
def _with_case(character: str) -> str:
    """Return a character in one form, dashes as `-`; nothing for what is not seen."""
    if _is_nothing(character):
        return ""
    if character == "\u2212" or unicodedata.category(character) == "Pd":
        return "-"
    return unicodedata.normalize("NFKC", character)


@lru_cache(maxsize=8192)
def _without_case(character: str) -> str:
    """Return a character without case and accents."""
    if _is_nothing(character):
        return ""
    apart = unicodedata.normalize("NFKD", character).casefold()
    return _ACCENTS.sub("", unicodedata.normalize("NFKD", apart)).translate(_ALIKE)


class Folded:
    """A text in one form: wide letters narrow, ligatures apart, invisible characters gone.

    Attributes:
        text: The text in that form.
    """

    def __init__(self, given: str, *, lower: bool) -> None:
        """Takes a text, and whether letters of either case are one."""
        self._places: list[int] | None = None
        if given.isascii():
            self.text = given.lower() if lower else given
            return
        pieces: list[str] = []
        places: list[int] = []
        form = _without_case if lower else _with_case
        for place, character in enumerate(given):
            shown = form(character)
            pieces.append(shown)
            places.extend([place] * len(shown))
        places.append(len(given))
        self.text = "".join(pieces)
        self._places = places

    def given(self, start: int, end: int) -> tuple[int, int]:
        """Return the span of the given text that a span of this one stands for."""
        if self._places is None:
            return start, end
        return self._places[start], self._places[end - 1] + 1 if end > start else self._places[end]

    def here(self, place: int) -> int:
        """Return where a place of the given text is in this one."""
        if self._places is None:
            return place
        low, high = 0, len(self._places) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._places[middle] < place else (low, middle)
        return low


class Text:
    """One text to be judged.

    Attributes:
        given: As it was given; what UTF-8 cannot hold is replaced, one character for one.
    """

    def __init__(self, given: str) -> None:
        """Takes the text."""
        self.given = given if given.isascii() else _SURROGATES.sub("\ufffd", given)

    @cached_property
    def plain(self) -> Folded:
        """In one form, case kept."""
        return Folded(self.given, lower=False)

    @cached_property
    def lower(self) -> Folded:
        """In one form, without case."""
        return Folded(self.given, lower=True)
