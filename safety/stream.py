"""Screens an answer while it comes, and gives the same whatever pieces it comes in.

The text is judged at places that depend on nothing but the text: every so many characters, not
whenever a piece arrives. What is more than `hold_back` characters behind such a place is passed
on, except what a match that reaches into the held characters has taken hold of: that waits until
the match is behind, too. So an answer that is generated again from its journal is passed on alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from safety.deciding import Span, decide
from safety.findings import Finding, Outcome, gravest
from safety.policy import Policy
from safety.redactions import Redactions, mark
from safety.text import Text

__all__ = ["OutputScreen"]

# The text is judged every so many characters at least.
_STEP = 8
# What was passed on already and is still looked at: for words' edges, and for matches that are
# longer than what is held.
_CONTEXT = 256
# A match that goes on growing is decided as it is once so many characters wait for it.
_LONGEST_WAIT = 8192


@dataclass(slots=True)
class _Waiting:
    """The text that is not passed on yet, and some of what is before it.

    Attributes:
        text: Context and what waits.
        base: Where `text` begins in the whole answer.
        passed: How far the answer is passed on, counted in the whole.
        next: Where it is judged next.
        starts: For each rule where it looks next, counted in the whole.
    """

    text: str = ""
    base: int = 0
    passed: int = 0
    next: int = 0
    starts: dict[str, int] = field(default_factory=dict)


class OutputScreen:
    """Screens one answer.

    Attributes:
        findings: What was found so far in what is passed on, and the match that blocked.
        blocked: Nothing more is passed on: a rule blocks, or asks for a person, whom a stream
            cannot wait for. False in a dry run.
        failed: Ids of rules that could not be applied, where the policy says to go on.
    """

    def __init__(self, policy: Policy, redactions: Redactions) -> None:
        """Takes the policy, and the task's tokens: where they stand, no rule has a say."""
        self._rules = [rule for rule in policy.at("output") if rule.kind != "moderation"]
        self._policy = policy
        self._redactions = redactions
        self._enforced = policy.mode == "enforce"
        self._step = max(_STEP, policy.hold_back // 2)
        self._waiting = _Waiting(next=policy.hold_back + self._step)
        self.findings: list[Finding] = []
        self.blocked = False
        self.failed: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The gravest action that applied so far; in a dry run always `allow`."""
        return self.would_be if self._enforced else "allow"

    @property
    def would_be(self) -> Outcome:
        """The outcome if the policy were enforced."""
        return gravest(self.findings)

    def feed(self, piece: str) -> str:
        """Take a piece of the answer and return what can be passed on now.

        Raises:
            DetectorFailed: A rule could not be applied, and the policy says not to go on.
        """
        if self.blocked:
            return ""
        if not self._rules:
            return piece
        waiting = self._waiting
        waiting.text += piece
        released: list[str] = []
        while not self.blocked and waiting.next <= waiting.base + len(waiting.text):
            released.append(self._judge(waiting.next, ended=False))
            held = waiting.next - waiting.passed
            # The more waits, the rarer it is read again: all readings together stay linear.
            waiting.next += max(self._step, (held - self._policy.hold_back) // 4)
        return "".join(released) if self._enforced else piece

    def finish(self) -> str:
        """Return the rest: nothing more comes.

        Raises:
            DetectorFailed: A rule could not be applied, and the policy says not to go on.
        """
        if self.blocked or not self._rules:
            return ""
        rest = self._judge(self._waiting.base + len(self._waiting.text), ended=True)
        return rest if self._enforced else ""

    def _judge(self, end: int, *, ended: bool) -> str:
        """Judge the answer up to `end` and return what is passed on of it."""
        waiting = self._waiting
        base = waiting.base
        text = waiting.text[: end - base]
        ours = list(self._redactions.spans(text))
        decided = decide(
            Text(text),
            self._rules,
            ours=ours,
            # Where context was cut off is no beginning: not for ^, and not for a word.
            starts={
                rule.id: max(1 if base else 0, waiting.starts.get(rule.id, 0) - base)
                for rule in self._rules
            },
            go_on=self._policy.on_failure == "allow" or not self._enforced,
        )
        self.failed = tuple(dict.fromkeys([*self.failed, *decided.failed]))
        matched = [span for spans in decided.matched.values() for span in spans]
        cut = len(text)
        if not ended:
            token = self._redactions.beginning(text)
            touching = sorted([*matched, *ours, (token, len(text))], reverse=True)
            cut = _settled(touching, self._passed_here, len(text), self._policy.hold_back)
        released, cut = self._pass_on(text, decided.spans, cut)
        for rule, spans in decided.matched.items():
            last = max((stop for _, stop in spans if stop <= cut), default=0)
            waiting.starts[rule] = max(waiting.starts.get(rule, 0), base + last)
        waiting.passed = base + cut
        drop = max(0, cut - max(_CONTEXT, self._policy.hold_back))
        waiting.text = waiting.text[drop:]
        waiting.base += drop
        return released

    @property
    def _passed_here(self) -> int:
        return self._waiting.passed - self._waiting.base

    def _pass_on(self, text: str, spans: list[Span], cut: int) -> tuple[str, int]:
        """Return what is passed on of a text up to `cut`, and how far that is."""
        base = self._waiting.base
        at = self._passed_here
        pieces: list[str] = []
        for span in spans:
            start = max(span.start, at)
            if start >= min(span.end, cut):  # passed on before, or still waiting
                continue
            rule = span.rule
            self.findings.append(
                Finding(rule.id, rule.kind, rule.action, "output", 0,
                        base + start, base + span.end, span.label)
            )  # fmt: skip
            if not self._enforced or rule.action == "flag":
                continue
            pieces.append(text[at:start])
            at = start
            if rule.action in ("block", "require_approval"):
                self.blocked = True
                return "".join(pieces), start
            pieces.append(mark(span.label))
            at = span.end
        return "".join([*pieces, text[at:cut]]), cut


def _settled(touching: list[tuple[int, int]], passed: int, length: int, hold_back: int) -> int:
    """Return how far a text can be passed on.

    Args:
        touching: Matches and tokens, the last first.
        passed: How far it is passed on already.
        length: Of the text.
        hold_back: How many characters are held at least.
    """
    # One character at least: a match that ends where the text does may not be the whole one.
    limit = cut = max(passed, length - max(1, hold_back))
    for start, end in touching:
        if start < cut < end:
            cut = start
    if cut >= passed and length - cut <= _LONGEST_WAIT:
        return cut
    if cut < passed and length - passed <= _LONGEST_WAIT:
        return passed
    # It waited long enough: the matches are taken as they are.
    for start, end in sorted(touching):
        if start < limit < end:
            limit = end
    return limit
