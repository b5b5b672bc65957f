"""Personal data that has a form and, where there is one, a checksum: no names, no addresses.

Candidates come from patterns in linear time; python-stdnum and phonenumbers, which is Google's
libphonenumber, say which of them are real. Both are tables and arithmetic: nothing is fetched.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from importlib import import_module

from safety.detectors import Match
from safety.patterns import compiled
from safety.policy import PII_TYPES, Rule
from safety.text import Text

__all__ = ["make"]

Spans = Iterator[tuple[int, int]]

# What cannot be in an address is soon said; letters of all scripts take much of a pattern's memory.
_BEFORE_AT = compiled(r"""([^\s@<>()\[\]{},;:"\\/|]{1,64})@""")
_LOCAL = re.compile(r"[\w.%+'=&#~-]{1,64}\Z")
_DOMAIN = re.compile(r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,10}[^\W\d_]{2,24}(?![\w-])")
_WITH_PASSWORD = re.compile(r"://[^\s/@:]*:\Z")  # what stands there is no mailbox
_IP4 = compiled(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")
_IP6 = compiled(r"[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]{1,35}(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3})?")


class Pii:
    """Finds personal data of some types."""

    def __init__(self, rule: Rule) -> None:
        """Takes the rule: its types, and the regions of phone numbers."""
        self._finders = [(type_, _finder(type_, rule)) for type_ in rule.types or PII_TYPES]

    def find(self, text: Text, start: int) -> Iterator[Match]:
        """Yield personal data."""
        plain = text.plain
        first = plain.here(start)
        for label, finder in self._finders:
            for begin, end in finder(plain.text, first):
                yield Match(*plain.given(begin, end), label)


def make(rule: Rule) -> Pii:
    """Return the detector for personal data."""
    return Pii(rule)


def _finder(type_: str, rule: Rule) -> Callable[[str, int], Spans]:
    if type_ == "EMAIL_ADDRESS":
        return _emails
    if type_ == "IP_ADDRESS":
        return _addresses
    if type_ == "PHONE_NUMBER":
        found: Callable[[str, int], Spans] = (
            import_module("safety.detectors.phones").Phones(rule.regions).find
        )
        return found
    numbers: dict[str, Callable[[str, int], Spans]] = import_module(
        "safety.detectors.numbers"
    ).FINDERS
    return numbers[type_]


def _emails(text: str, start: int) -> Spans:
    """Yield e-mail addresses, of any domain: the ones within a company have none that is public."""
    if "@" not in text:
        return
    for begin, at in _BEFORE_AT.spans(text, start, group=1):
        local = _LOCAL.search(text, begin, at)
        domain = _DOMAIN.match(text, at + 1, at + 254)
        if local is None or domain is None:
            continue
        begin = local.start()
        while begin < at and text[begin] in ".'=&#~-":  # a quote or a bullet before it
            begin += 1
        if begin < at and not _WITH_PASSWORD.search(text, max(0, begin - 80), begin):
            yield begin, domain.end()


def _addresses(text: str, start: int) -> Spans:
    """Yield IP addresses, but those that say only `this machine` or `any`."""
    for pattern, sign, joins in ((_IP4, ".", "."), (_IP6, ":", ":")):
        if sign not in text:
            continue
        for begin, end in pattern.spans(text, start):
            while sign == ":" and end - begin > 2 and text[end - 1] == ":" != text[end - 2]:
                end -= 1  # the colon of a sentence
            if _apart(text, begin, end, joins) and _is_address(text[begin:end]):
                yield begin, end


def _apart(text: str, begin: int, end: int, joins: str) -> bool:
    """Whether a span is not the middle of something longer, such as a version of five numbers."""
    before, behind = text[max(0, begin - 2) : begin], text[end : end + 2]
    if before and (before[-1].isalnum() or before[-1] == "_"):
        return False
    if behind and (behind[0].isalnum() or behind[0] == "_"):
        return False
    longer = before[-1:] == joins and (joins == ":" or before[:1].isalnum())
    return not longer and not (len(behind) == 2 and behind[0] == joins and behind[1].isalnum())


def _is_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    # a::b is more often a name in a program.
    written = any(map(str.isdigit, text)) and len(text) > 5
    return written and not (address.is_loopback or address.is_unspecified)
