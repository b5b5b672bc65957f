"""A text as detectors read it: without the disguises that Unicode offers, places kept."""

from __future__ import annotations

import re
import unicodedata
from functools import cached_property

__all__ = ["Folded", "Text"]

_SURROGATES = re.compile("[\ud800-\udfff]")


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
        for place, character in enumerate(given):
            if character.isascii():
                form = character.lower() if lower else character
            elif unicodedata.category(character) == "Cf":  # zero width, direction, soft hyphen
                continue
            else:
                # Without case also without regard to how accents are written.
                form = unicodedata.normalize("NFKD" if lower else "NFKC", character)
                form = form.casefold() if lower else form
            pieces.append(form)
            places.extend([place] * len(form))
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
