"""JSON text with other words in it: escapes hide nothing, and what is put in is escaped.

The text is gone through piece by piece and never built up: so names that stand in it twice are both
read, no depth is too deep, and where nothing changes not a blank does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal

__all__ = ["digits_of", "leaves_of", "with_leaves"]

Change = Callable[[str], str]

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"?'
_STRINGS = re.compile(_STRING, re.DOTALL)
_PIECES = re.compile(rf"{_STRING}|-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|[{{}}]", re.DOTALL)
_COLON = re.compile(r"\s*:")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CUT_OFF = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_SURROGATES = re.compile("[\ud800-\udfff]")
# A number of more digits is none of those that anybody looks for.
_MOST_DIGITS = 40


def with_leaves(text: str, change: Change) -> str:
    """Return JSON text with its strings, names and numbers changed; a changed number is a string.

    Text that is no JSON is one string; if there are escapes in it, such as in JSON that breaks off,
    its strings are read each for itself, and so is what is between them.
    """
    try:
        json.loads(text)
    except RecursionError:
        return _between(text, change)
    except ValueError:
        return _between(text, change) if "\\" in text else change(text)
    return _within(text, change)


def leaves_of(text: str) -> list[str]:
    """Return what `with_leaves` asks about, in that order."""
    found: list[str] = []

    def note(leaf: str) -> str:
        found.append(leaf)
        return leaf

    with_leaves(text, note)
    return found


def _within(text: str, change: Change) -> str:
    """Change what is JSON."""
    # The names that were put into each object around the place: two that become the same stay two.
    names: list[set[str]] = []

    def made(found: re.Match[str]) -> str:
        piece = found.group()
        if piece == "{":
            names.append(set())
        elif piece == "}":
            names.pop()
        elif piece[0] != '"':
            digits = digits_of(piece)
            changed = change(digits)
            return piece if changed == digits else _written(changed)
        else:
            said = _said(piece)
            changed = change(said)
            if changed == said:
                return piece
            if _COLON.match(text, found.end()):
                changed = _unlike(changed, names[-1])
            return _written(changed)
        return piece

    return _PIECES.sub(made, text)


def _between(text: str, change: Change) -> str:
    """Change what may break off anywhere, or is too deep to be read as a whole."""
    made: list[str] = []
    at = 0
    for found in _STRINGS.finditer(text):
        made.append(_plain(text[at : found.start()], change))
        said = _said(found.group())
        changed = change(said)
        made.append(found.group() if changed == said else _written(changed))
        at = found.end()
    return "".join([*made, _plain(text[at:], change)])


def _plain(text: str, change: Change) -> str:
    return change(text) if any(map(str.isalnum, text)) else text


def _said(literal: str) -> str:
    """Return what a string says, one that breaks off or has escapes that there are not as well."""
    if "\\" not in literal and literal.endswith('"') and len(literal) > 1:
        return literal[1:-1]
    try:
        return str(json.loads(literal, strict=False))
    except ValueError:
        inner = _CUT_OFF.sub("", literal.removeprefix('"'))
        inner = inner.removesuffix('"') if len(literal) > 1 else inner
        return _ESCAPE.sub(
            lambda found: chr(int(found[1], 16)) if found[1] else str(found[2]), inner
        )


def digits_of(literal: str) -> str:
    """Return a number as it is read aloud: 41e14 has as many digits as it stands for."""
    if literal.lstrip("-").isdigit():
        return literal
    value = Decimal(literal)
    if abs(value.adjusted()) > _MOST_DIGITS or value != value.to_integral_value():
        return literal
    return f"{value.to_integral_value():f}".partition(".")[0]


def _unlike(name: str, taken: set[str]) -> str:
    """Return a name that an object has not got yet."""
    made, number = name, 1
    while made in taken:
        number += 1
        made = f"{name}_{number}"
    taken.add(made)
    return made


def _written(text: str) -> str:
    """Return a string as JSON; half a character of UTF-16 stays an escape."""
    return json.dumps(text, ensure_ascii=bool(_SURROGATES.search(text)))
