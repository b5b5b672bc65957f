"""GBNF grammars: read, followed character by character, and continued.

llama.cpp follows a grammar from its root and cannot be told that some text is there already. But
where a grammar stands after some text is a set of stacks, and what is left of a stack is a plain
sequence of elements. So the rest of a grammar is a grammar: a new root with one alternative per
stack. That is how a constrained generation is resumed from its journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_STACKS = 4096


class GrammarError(ValueError):
    """The text is no grammar we can follow; the message says where it is wrong."""


class NoContinuation(ValueError):
    """The text given is not the beginning of anything the grammar allows."""


@dataclass(frozen=True)
class Chars:
    """One character out of ranges, or out of everything but them."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False

    def __contains__(self, char: str) -> bool:
        code = ord(char)
        return any(low <= code <= high for low, high in self.ranges) != self.negated


@dataclass(frozen=True)
class Ref:
    """A place where another rule stands."""

    rule: str


Element = Chars | Ref
Alternative = tuple[Element, ...]
Rules = dict[str, tuple[Alternative, ...]]

Frame = tuple[str, int, int]
"""Rule, number of its alternative, position in it."""
Stack = tuple[Frame, ...]
"""What is left to do, the next thing last; empty when the text may end."""


class Grammar:
    """A grammar that can be followed."""

    def __init__(self, rules: Rules) -> None:
        """Takes parsed rules.

        Args:
            rules: Alternatives by rule name; must have a rule "root".

        Raises:
            GrammarError: A rule is missing or left-recursive.
        """
        if "root" not in rules:
            raise GrammarError("the grammar has no rule `root`")
        for name, alternatives in rules.items():
            for element in (element for alternative in alternatives for element in alternative):
                if isinstance(element, Ref) and element.rule not in rules:
                    raise GrammarError(f"rule {name!r} uses {element.rule!r}, which is not there")
        self.rules = rules
        self._refuse_left_recursion()

    def rest_after(self, text: str) -> str:
        """The grammar of what may follow `text`, as GBNF.

        Raises:
            NoContinuation: The grammar allows nothing that begins with `text`.
            GrammarError: There are too many ways to read the text.
        """
        stacks = self._closure([self._start(n) for n in range(len(self.rules["root"]))])
        for at, char in enumerate(text):
            moved = [self._moved(stack) for stack in stacks if stack and char in self._next(stack)]
            if not moved:
                raise NoContinuation(f"the grammar does not allow {char!r} at character {at}")
            stacks = self._closure(moved)
        return self._written(stacks)

    def _start(self, number: int) -> Stack:
        return (("root", number, 0),) if self.rules["root"][number] else ()

    def _element(self, frame: Frame) -> Element:
        rule, number, position = frame
        return self.rules[rule][number][position]

    def _next(self, stack: Stack) -> Chars:
        element = self._element(stack[-1])
        assert isinstance(element, Chars)
        return element

    def _moved(self, stack: Stack) -> Stack:
        """The stack behind its top element."""
        # A frame with nothing left is dropped at once, so that a rule that ends in itself does
        # not pile up.
        *below, (rule, number, position) = stack
        if position + 1 < len(self.rules[rule][number]):
            below.append((rule, number, position + 1))
        return tuple(below)

    def _closure(self, stacks: Iterable[Stack]) -> list[Stack]:
        """The stacks whose next element is a character, or that are empty."""
        waiting = list(stacks)
        seen: set[Stack] = set()
        ready: list[Stack] = []
        while waiting:
            stack = waiting.pop()
            if stack in seen:
                continue
            seen.add(stack)
            if len(seen) > MAX_STACKS:
                raise GrammarError("the grammar is too ambiguous to follow")
            element = self._element(stack[-1]) if stack else None
            if not isinstance(element, Ref):
                ready.append(stack)
                continue
            base = self._moved(stack)
            for number, alternative in enumerate(self.rules[element.rule]):
                waiting.append((*base, (element.rule, number, 0)) if alternative else base)
        return ready

    def _written(self, stacks: list[Stack]) -> str:
        # The old root may be used by other rules, so it keeps its place under another name.
        renamed = "root-before"
        while renamed in self.rules:
            renamed += "-"
        needed = self._reachable(stacks)
        lines = [f"root ::= {' | '.join(self._written_stack(s, renamed) for s in sorted(stacks))}"]
        lines += [
            f"{renamed if name == 'root' else name} ::= "
            + " | ".join(_written(alternative, renamed) for alternative in alternatives)
            for name, alternatives in self.rules.items()
            if name in needed
        ]
        return "\n".join(lines) + "\n"

    def _reachable(self, stacks: list[Stack]) -> set[str]:
        waiting = [self.rules[rule][n][at:] for stack in stacks for rule, n, at in stack]
        found: set[str] = set()
        while waiting:
            for element in waiting.pop():
                if isinstance(element, Ref) and element.rule not in found:
                    found.add(element.rule)
                    waiting += self.rules[element.rule]
        return found

    def _written_stack(self, stack: Stack, renamed: str) -> str:
        left: list[Element] = []
        for rule, number, position in reversed(stack):
            left += self.rules[rule][number][position:]
        return _written(tuple(left), renamed)

    def _refuse_left_recursion(self) -> None:
        """Such a grammar could not be followed: it would expand for ever."""
        empty: set[str] = set()
        while True:
            more = {
                name
                for name, alternatives in self.rules.items()
                if name not in empty
                and any(
                    all(isinstance(e, Ref) and e.rule in empty for e in alternative)
                    for alternative in alternatives
                )
            }
            if not more:
                break
            empty |= more
        first = {name: set(self._first(name, empty)) for name in self.rules}
        for name in self.rules:
            reached: set[str] = set()
            waiting = [name]
            while waiting:
                for rule in first[waiting.pop()] - reached:
                    reached.add(rule)
                    waiting.append(rule)
            if name in reached:
                raise GrammarError(f"rule {name!r} is left-recursive")

    def _first(self, name: str, empty: set[str]) -> Iterator[str]:
        """Rules that may stand at the very beginning of a rule."""
        for alternative in self.rules[name]:
            for element in alternative:
                if isinstance(element, Chars):
                    break
                yield element.rule
                if element.rule not in empty:
                    break


def _written(alternative: Alternative, renamed: str) -> str:
    if not alternative:
        return '""'
    return " ".join(
        _written_chars(element)
        if isinstance(element, Chars)
        else (renamed if element.rule == "root" else element.rule)
        for element in alternative
    )


def _written_chars(chars: Chars) -> str:
    if chars.negated and not chars.ranges:
        return "."
    ranges = "".join(
        _code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in chars.ranges
    )
    return f"[{'^' if chars.negated else ''}{ranges}]"


def _code(code: int) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    return f"\\U{code:08X}"
