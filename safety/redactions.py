"""Which token stands for which text: what was redacted on the way in comes back for the caller.

A token says what it stands for and which one, as `<EMAIL_ADDRESS_1>`, so that a model can still
tell two people apart. The same text has the same token throughout a task. A text that already
holds something of that form is left as it is: that number is never given out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Redactions", "Restorer", "mark", "may_hold_token"]

# Bounded, so that a piece that may begin a token is short and a search takes linear time.
_TOKEN = re.compile(r"<[A-Z][A-Z0-9_]{0,63}_[1-9][0-9]{0,8}>")
_BEGINNING = re.compile(r"<[A-Z0-9_]{0,73}\Z")


def may_hold_token(text: str) -> bool:
    """Tell whether something in a text has a token's form."""
    return "<" in text and _TOKEN.search(text) is not None


def mark(label: str) -> str:
    """Return what stands in an answer for what was redacted there, for good."""
    return f"[{label}]"


class Redactions:
    """The tokens of one task, and what each stands for."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[str, str], str] = {}
        self._originals: dict[str, str] = {}
        self._foreign: set[str] = set()
        self._numbers: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Whether anything was redacted."""
        return bool(self._originals)

    def __len__(self) -> int:
        """How many texts have tokens."""
        return len(self._originals)

    def document(self) -> dict[str, Any]:
        """Return the map as JSON takes it. It holds what was redacted: to be sealed."""
        return {
            "tokens": [[token, label, text] for (label, text), token in self._tokens.items()],
            "foreign": sorted(self._foreign),
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Redactions:
        """Read what `document` wrote."""
        redactions = cls()
        for token, label, text in document["tokens"]:
            redactions._tokens[label, text] = token
            redactions._originals[token] = text
        redactions._foreign.update(document["foreign"])
        return redactions

    def reserve(self, text: str) -> None:
        """Never give out a token that a text holds already, as somebody's own words."""
        if "<" in text:
            for found in _TOKEN.findall(text):
                if found not in self._originals:
                    self._foreign.add(found)

    def token(self, label: str, text: str) -> str:
        """Return the token for a text, the one it had before if it had one."""
        known = self._tokens.get((label, text))
        if known is not None:
            return known
        number = self._numbers.get(label, 0) + 1
        while (token := f"<{label}_{number}>") in self._originals or token in self._foreign:
            number += 1
        self._numbers[label] = number
        self._tokens[label, text] = token
        self._originals[token] = text
        return token

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where tokens of ours stand in a text."""
        if self._originals and "<" in text:
            for found in _TOKEN.finditer(text):
                if found.group() in self._originals:
                    yield found.span()

    def beginning(self, text: str) -> int:
        """Return where a token of ours may begin that the end of a text cuts off, else its length.

        Args:
            text: What is there so far.
        """
        found = _BEGINNING.search(text, max(0, len(text) - 75)) if self._originals else None
        if found is None:
            return len(text)
        cut = found.group()
        return (
            found.start() if any(token.startswith(cut) for token in self._originals) else len(text)
        )

    def restore(self, text: str, *, as_json: bool = False) -> str:
        """Put back what the tokens in a text stand for.

        Args:
            text: An answer of the model's.
            as_json: The text is JSON: what is put back is escaped as within its strings.
        """
        if not self._originals or "<" not in text:
            return text

        def original(found: re.Match[str]) -> str:
            known = self._originals.get(found.group())
            if known is None:
                return found.group()
            return json.dumps(known, ensure_ascii=False)[1:-1] if as_json else known

        return _TOKEN.sub(original, text)

    def restorer(self, *, as_json: bool = False) -> Restorer:
        """Return a restorer for an answer that comes in pieces."""
        return Restorer(self, as_json=as_json)


class Restorer:
    """Restores an answer while it comes; holds back only what may begin a token."""

    def __init__(self, redactions: Redactions, *, as_json: bool = False) -> None:
        """Takes the map of the task, and whether the answer is JSON."""
        self._redactions = redactions
        self._as_json = as_json
        self._held = ""

    def feed(self, piece: str) -> str:
        """Take a piece and return what can be passed on."""
        text = self._held + piece
        cut = self._redactions.beginning(text)
        self._held = text[cut:]
        return self._redactions.restore(text[:cut], as_json=self._as_json)

    def finish(self) -> str:
        """Return what was held: nothing more comes."""
        held, self._held = self._held, ""
        return self._redactions.restore(held, as_json=self._as_json)
