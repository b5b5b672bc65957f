"""Reads GBNF text, llama.cpp's notation for grammars, into rules."""

from __future__ import annotations

from inference.grammar import Alternative, Chars, Element, Grammar, GrammarError, Ref, Rules

MAX_REPEAT = 2000

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_HEX = {"x": 2, "u": 4, "U": 8}
_ANY = Chars((), negated=True)


def read_grammar(text: str) -> Grammar:
    """Reads a grammar.

    Raises:
        GrammarError: With the line that could not be read.
    """
    reader = _Reader(text)
    reader.read()
    return Grammar(reader.rules)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.rules: Rules = {}

    def read(self) -> None:
        self._skip(newlines=True)
        while self._at < len(self._text):
            name = self._name()
            self._skip()
            if not self._text.startswith("::=", self._at):
                raise self._wrong("expected `::=`")
            self._at += 3
            self._skip(newlines=True)
            alternatives = self._alternatives(name, nested=False)
            if name in self.rules:
                raise self._wrong(f"rule {name!r} is there twice")
            self.rules[name] = alternatives
            if self._peek() and self._peek() not in "\r\n":
                raise self._wrong("expected the end of the rule")
            self._skip(newlines=True)

    def _alternatives(self, name: str, *, nested: bool) -> tuple[Alternative, ...]:
        found = [self._sequence(name, nested=nested)]
        while self._peek() == "|":
            self._at += 1
            self._skip(newlines=True)
            found.append(self._sequence(name, nested=nested))
        return tuple(found)

    def _sequence(self, name: str, *, nested: bool) -> Alternative:
        sequence: list[Element] = []
        while True:
            item = self._item(name)
            if item is None:
                return tuple(sequence)
            self._skip(newlines=nested)
            while (counts := self._counts()) is not None:
                item = self._repeated(name, item, *counts)
                self._skip(newlines=nested)
            sequence += item

    def _item(self, name: str) -> list[Element] | None:
        char = self._peek()
        if char == '"':
            return self._literal()
        if char == "[":
            return [self._class()]
        if char == ".":
            self._at += 1
            return [_ANY]
        if char == "(":
            self._at += 1
            self._skip(newlines=True)
            inner = self._added(name, self._alternatives(name, nested=True))
            if self._peek() != ")":
                raise self._wrong("expected `)`")
            self._at += 1
            return [inner]
        if char.isascii() and (char.isalnum() or char == "-"):
            return [Ref(self._name())]
        if char and char not in "|)\r\n":
            raise self._wrong(f"unexpected {char!r}")
        return None

    def _literal(self) -> list[Element]:
        self._at += 1
        found: list[Element] = []
        while (code := self._char('"')) is not None:
            found.append(Chars(((code, code),)))
        return found

    def _class(self) -> Chars:
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while (low := self._char("]")) is not None:
            high = low
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                end = self._char("")
                high = low if end is None else end
            ranges.append((low, high))
        return Chars(tuple(ranges), negated)

    def _char(self, end: str) -> int | None:
        """One character, escapes read; None at the end mark, which is taken."""
        char = self._peek()
        if not char:
            raise self._wrong(f"expected `{end}`")
        self._at += 1
        if char == end:
            return None
        if char != "\\":
            return ord(char)
        escape = self._peek()
        self._at += 1
        if escape in _HEX:
            digits = self._text[self._at : self._at + _HEX[escape]]
            self._at += _HEX[escape]
            try:
                return ord(chr(int(digits, 16)))
            except (ValueError, OverflowError):
                raise self._wrong(f"bad escape \\{escape}{digits}") from None
        if escape not in _ESCAPES:
            raise self._wrong(f"unknown escape \\{escape}")
        return ord(_ESCAPES[escape])

    def _counts(self) -> tuple[int, int | None] | None:
        char = self._peek()
        if char and char in "*+?":
            self._at += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        if char != "{":
            return None
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(end, self._at)].partition(",")
        try:
            least = int(low or "0")
            most = (int(high) if high.strip() else None) if comma else least
        except ValueError:
            raise self._wrong("expected {n}, {n,} or {n,m}") from None
        if end < 0 or (most is not None and not least <= most <= MAX_REPEAT) or least > MAX_REPEAT:
            raise self._wrong(f"a repetition must be in order and at most {MAX_REPEAT}")
        self._at = end + 1
        return least, most

    def _repeated(
        self, name: str, item: list[Element], least: int, most: int | None
    ) -> list[Element]:
        out = item * least
        if most is None:
            again = self._fresh(name)
            self.rules[again] = ((*item, Ref(again)), ())
            return [*out, Ref(again)]
        inner: Ref | None = None
        for _ in range(most - least):
            inner = self._added(name, ((*item, inner) if inner else tuple(item), ()))
        return [*out, inner] if inner else out

    def _added(self, name: str, alternatives: tuple[Alternative, ...]) -> Ref:
        fresh = self._fresh(name)
        self.rules[fresh] = alternatives
        return Ref(fresh)

    def _fresh(self, name: str) -> str:
        fresh = f"{name}-in{len(self.rules)}"
        # A slot of its own, so that nested rules do not take the same name.
        while fresh in self.rules:
            fresh += "-"
        self.rules[fresh] = ()
        return fresh

    def _name(self) -> str:
        start = self._at
        while self._peek() and (
            self._peek() == "-" or (self._peek().isascii() and self._peek().isalnum())
        ):
            self._at += 1
        if start == self._at:
            raise self._wrong("expected the name of a rule")
        return self._text[start : self._at]

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, *, newlines: bool = False) -> None:
        while (char := self._peek()) and (
            char in " \t" or char == "#" or (newlines and char in "\r\n")
        ):
            if char == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                self._at += 1

    def _wrong(self, why: str) -> GrammarError:
        line = self._text.count("\n", 0, self._at) + 1
        return GrammarError(f"line {line}: {why}")
