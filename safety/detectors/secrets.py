"""Secrets: some 500 formats of keys and tokens, and what a text itself calls a password.

Kingfisher's rules find the formats, with their checksums and entropy. It scans in this process
and never asks whether a key works. What it leaves is found here: private keys by their header,
passwords within URLs and headers, our own keys, and values assigned to a name such as `password`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

from safety.detectors import Match
from safety.patterns import compiled
from safety.policy import Rule
from safety.text import Text

if TYPE_CHECKING:
    from kingfisher_sdk import Scanner

__all__ = ["make"]

_BREAK = r"(?:\s|\\[nr])"
_LINE = r"(?:[A-Za-z0-9+/=]{16,}|(?:Proc-Type|DEK-Info|Comment|Subject): [^\n]*)"

_PRIVATE_KEY = (
    r"(-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    rf"(?:{_BREAK}+{_LINE})*"
    rf"(?:(?:{_BREAK}*[A-Za-z0-9+/=]{{1,64}})?{_BREAK}*"
    r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----)?)"
)
_IN_URL = r"[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s:/?#@]{0,64}:([^\s/?#@]{1,256})@"
_AUTHORIZATION = (
    r"(?i)authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:basic|bearer|token)\s{1,4}"
    r"([A-Za-z0-9+/=._~-]{12,1000})"
)
_API_KEY = r"\b((?:sk|rk|pk|ol)[-_][A-Za-z0-9_-]{20,400})"
# label: (an expression whose group 1 is the secret, what the text must hold for it to be tried)
_OWN = {
    "PRIVATE_KEY": (_PRIVATE_KEY, "PRIVATE KEY"),
    "URL_PASSWORD": (_IN_URL, "://"),
    "AUTHORIZATION": (_AUTHORIZATION, ""),
    "API_KEY": (_API_KEY, ""),
    # Kingfisher wants its other half beside it.
    "AWS_ACCESS_KEY": (r"\b((?:AKIA|ASIA)[A-Z2-7]{16})\b", "IA"),
}
# Values that are assigned to a secret's name; most are none, so they must look like one.
_ASSIGNED = (
    r"(?i)(?:password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|auth[_-]?token|"
    r"access[_-]?token)[\"']?\s{0,4}(?::=|[:=])\s{0,4}[\"'`]?([^\s\"'`,;<>(){}\[\]$*]{8,200})"
)
_NO_NAME = re.compile(r"[^A-Z0-9]+")


_LOADING = Lock()


@lru_cache(maxsize=1)
def _loaded() -> Scanner:
    """Return the scanner; compiling its rules takes seconds once on a machine, then one."""
    from kingfisher_sdk import Scanner

    return Scanner()


def _scanner() -> Scanner:
    """Return the scanner, which all threads share; many that want it at first load it once."""
    with _LOADING:
        return _loaded()


class Secrets:
    """Finds secrets."""

    def __init__(self) -> None:
        self._scanner = _scanner()
        self._own = [(label, compiled(form), sign) for label, (form, sign) in _OWN.items()]
        self._assigned = compiled(_ASSIGNED)

    def find(self, text: Text, start: int) -> Iterator[Match]:
        """Yield secrets."""
        plain = text.plain
        for begin, end, label in self._within(plain.text, plain.here(start)):
            yield Match(*plain.given(begin, end), label)

    def _within(self, text: str, start: int) -> Iterator[Match]:
        data = text.encode()
        for found in self._scanner.scan(data):
            begin = found.location["start_offset"]
            end = found.location["end_offset"]
            if len(data) != len(text):  # offsets are of bytes
                begin, end = len(data[:begin].decode()), len(data[:end].decode())
            if begin >= start and end > begin:
                yield Match(begin, end, _label(found.rule_id))
        for label, form, sign in self._own:
            if sign in text:
                for begin, end in form.spans(text, start, group=1):
                    yield Match(begin, end, label)
        for begin, end in self._assigned.spans(text, start, group=1):
            if _looks_secret(text[begin:end]):
                yield Match(begin, end, "CREDENTIAL")


def make(rule: Rule) -> Secrets:
    """Return the detector for secrets."""
    return Secrets()


def _label(rule: str) -> str:
    """Return a name for a rule such as `betterleaks.github-pat`."""
    name = re.split(r"[./]", rule)[-1]
    return _NO_NAME.sub("_", name.upper()).strip("_")[:40] or "SECRET"


def _looks_secret(value: str) -> bool:
    """Whether an assigned value is none that a program computes or a manual shows."""
    mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return mixed and "://" not in value and len(set(value)) > 5
