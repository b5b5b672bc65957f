"""Numbers that prove themselves: cards, bank accounts, social security numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

from stdnum import iban, luhn
from stdnum.us import ssn

from safety.patterns import compiled

__all__ = ["FINDERS", "accounts"]

# What may stand between the groups of a number: blanks, a new line, and what people put there.
_GAP = r"[ \t\r\n./-]"
_DIGITS = compiled(rf"[0-9]+(?:{_GAP}{{1,3}}[0-9]+)*")
_GROUP = re.compile(r"[0-9]+")
_IBAN = compiled(r"(?:^|[^A-Za-z0-9])([A-Za-z]{2}[0-9]{2})" + _GAP + "{0,3}[A-Za-z0-9]{2}")
_IBAN_REST = re.compile(rf"(?:{_GAP}{{0,3}}[A-Za-z0-9]){{11,30}}")
_SSN = compiled(r"[0-9]{3}([ -])[0-9]{2}([ -])[0-9]{4}|[0-9]{9}")
_SOCIAL = compiled(r"(?i)\bssn\b|social[ -]security|social number")

# Of the issuers in use: first digits from, to, and the lengths their numbers have.
_ISSUERS = (
    ("4", "4", (13, 16, 19)),
    ("51", "55", (16,)),
    ("2221", "2720", (16,)),
    ("34", "34", (15,)),
    ("37", "37", (15,)),
    ("6011", "6011", (16, 19)),
    ("644", "659", (16, 19)),
    ("35", "35", (16, 19)),
    ("30", "30", (14, 16)),
    ("36", "36", (14, 16)),
    ("38", "39", (14, 16)),
    ("62", "62", (16, 17, 18, 19)),
    ("50", "50", (16, 19)),
    ("56", "58", (16, 19)),
)
_CONTEXT = 60
# What is between the groups of a number that is written in one place; all else is a guess, so that
# there they must be those that cards have, and no piece of a list of such groups.
_CLOSE = frozenset(" .-")
_FORMS = frozenset({(4, 4, 4, 4), (4, 4, 4, 4, 3), (4, 6, 5), (4, 6, 4)})
_LISTED_BEFORE = re.compile(rf"(?<![0-9])[0-9]{{4}}({_GAP}{{1,3}})\Z")
_LISTED_BEHIND = re.compile(rf"({_GAP}{{1,3}})[0-9]{{4}}(?![0-9])")
_SEPARATORS = str.maketrans("", "", " \t\r\n./-")
# Letters of an account count from A, which is 10.
_VALUES = {
    ord(letter): str(10 + at)
    for letters in ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
    for at, letter in enumerate(letters)
}


def _cards(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of payment cards, in groups or not."""
    for begin, end in _DIGITS.spans(text, start):
        if end - begin < 13:
            continue
        groups = [found.span() for found in _GROUP.finditer(text, begin, end)]
        # What touches a letter is part of something else; its neighbours need not be.
        if text[end : end + 1].isalnum():
            groups.pop()
        first = int(text[begin - 1 : begin].isalnum())
        while first < len(groups):
            if not 3 <= groups[first][1] - groups[first][0] <= 19:
                first += 1
                continue
            last = next(
                (
                    last
                    for last in range(min(len(groups), first + 5), first, -1)
                    if _is_card(text, groups[first:last])
                ),
                None,
            )
            if last is not None:
                yield groups[first][0], groups[last - 1][1]
            first = last or first + 1


def _is_card(text: str, spans: list[tuple[int, int]]) -> bool:
    groups = [text[begin:end] for begin, end in spans]
    if len(groups) > 1 and any(not 3 <= len(group) <= 7 for group in groups):
        return False
    digits = "".join(groups)
    if not 13 <= len(digits) <= 19 or not luhn.is_valid(digits):
        return False
    return any(
        low <= digits[: len(low)] <= high and len(digits) in lengths
        for low, high, lengths in _ISSUERS
    ) and _belong_together(text, spans)


def _belong_together(text: str, spans: list[tuple[int, int]]) -> bool:
    """Whether groups are of one number, by what is between them and around them."""
    between = {text[one[1] : other[0]] for one, other in pairwise(spans)}
    if between <= _CLOSE:
        return True
    if tuple(end - begin for begin, end in spans) not in _FORMS:
        return False
    begin, end = spans[0][0], spans[-1][1]
    before = _LISTED_BEFORE.search(text, max(0, begin - 8), begin)
    behind = _LISTED_BEHIND.match(text, end)
    return not any(listed and listed[1] in between for listed in (before, behind))


def accounts(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield IBANs, whose country says how long they are."""
    for begin, at in _IBAN.spans(text, max(0, start - 1), group=1):
        rest = _IBAN_REST.match(text, at)
        if rest is None or begin < start:
            continue
        for last in range(rest.end(), begin + 14, -1):
            if text[last : last + 1].isalnum() or not text[last - 1].isalnum():
                continue
            if _is_account(text[begin:last]):
                yield begin, last
                break


def _is_account(written: str) -> bool:
    """Whether its check digits are right, which is soon said, and then whether its country is."""
    compact = written.translate(_SEPARATORS)
    return int((compact[4:] + compact[:4]).translate(_VALUES)) % 97 == 1 and bool(
        iban.is_valid(compact)
    )


def _social(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield US social security numbers: in their groups, or where the text says what they are."""
    for begin, end in _SSN.spans(text, start):
        if text[begin - 1 : begin].isalnum() or text[end : end + 1].isalnum():
            continue
        number = text[begin:end]
        if len(number) == 9:
            if not _SOCIAL.within(text[max(0, begin - _CONTEXT) : begin]):
                continue
        elif number[3] != number[6] or text[begin - 1 : begin] == "-" or text[end : end + 1] == "-":
            continue
        if ssn.is_valid(number.replace(" ", "-")):
            yield begin, end


FINDERS: dict[str, Callable[[str, int], Iterator[tuple[int, int]]]] = {
    "CREDIT_CARD": _cards,
    "IBAN_CODE": accounts,
    "US_SSN": _social,
}
