"""What of an answer is let through, while it is made: kept as screened, shown as its caller wrote.

Three forms of the same words: what the model says; what the policy lets pass, which is kept,
logged and cached; and that with the originals put back, which only the caller is shown. What a
model that judges must see first waits for its end, and so does JSON, an answer's or the arguments
of a tool call: in its escapes nothing could be found, and it must stay JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from activities.judging import Ask, moderated, nobody
from inference.answers import Answer, Choice, MadeCall, add_piece
from inference.upstream.messages import Delta, ToolPiece
from safety.errors import DetectorFailed
from safety.findings import Finding, Verdict, gravest
from safety.json_text import with_leaves
from safety.policy import Policy
from safety.redactions import Redactions, Restorer
from safety.screen import JsonScreen, OutputScreen, Screen
from store.decisions import Decision

__all__ = ["FILTERED", "Gate", "gate_of"]

#: How an answer ends that the policy has cut off.
FILTERED = "content_filter"
# In the order in which a model uses them.
_CHANNELS = ("reasoning", "text", "refusal")


@dataclass
class _Passing:
    """One choice of an answer on its way.

    Attributes:
        screens: By channel, what the model's words go through.
        restorers: By channel, what the caller's go through.
        speaking: The channel that spoke last.
        calls: Tool calls, held until they are whole.
        ended: Its finish reason was said.
    """

    screens: dict[str, OutputScreen | JsonScreen]
    restorers: dict[str, Restorer]
    speaking: str | None = None
    calls: list[MadeCall] = field(default_factory=list)
    ended: bool = False


class Gate:
    """Stands between an engine and everybody else, for one call.

    Attributes:
        shown: What passed, as its caller is shown it.
        blocked: Nothing more passes: end the engine's work.
        failed: The rule that could not be applied and stopped the answer.
    """

    def __init__(self, policy: Policy, redactions: Redactions, *, as_json: bool) -> None:
        self._kept = Answer()
        self.shown = Answer()
        self.blocked = False
        self.failed: str | None = None
        self._policy = policy
        self._redactions = redactions
        self._screen = Screen(policy, redactions)
        self._as_json = as_json
        self._passing: list[_Passing] = []
        self._findings: list[Finding] = []
        self._asked = tuple(r for r in policy.at("output") if r.kind == "moderation")
        self._fresh: list[str] = []
        self._written = 0

    @property
    def kept(self) -> Answer:
        """What passed, as it is kept."""
        return Answer() if self._waits else self._kept

    @property
    def asks(self) -> bool:
        """Whether a model must judge the whole: see `judged`."""
        return bool(self._asked)

    @property
    def findings(self) -> list[Finding]:
        """What was found so far; the part is the choice."""
        return [*self._streamed(), *self._findings]

    def take(self, deltas: Sequence[Delta], *, ended: bool) -> tuple[Delta, ...]:
        """Take what the engine said, and return what its caller is shown now.

        Args:
            deltas: Pieces, in order.
            ended: Nothing more comes.
        """
        kept: list[Delta] = []
        try:
            for passed in self._passed(deltas, ended=ended):
                kept.append(passed)
        except _Stop:
            pass
        except DetectorFailed as failure:
            self.blocked, self.failed = True, failure.rule
        if self.blocked:
            kept.extend(self._cut_off())
        for delta in kept:
            self._kept.add(delta)
            if delta.choice == 0 and delta.text:
                self._fresh.append(delta.text)
        return () if self._waits else self._shown(kept)

    async def judged(self, ask: Ask | None) -> tuple[Delta, ...]:
        """Have the rules judge that a model is asked for; return what its caller is shown.

        Args:
            ask: Asks; None: nobody can be asked here, and what the policy says about failures
                holds.
        """
        waited = self._waits
        if not self.blocked:
            texts = tuple(map(_said, self._kept.choices))
            unjudged = Verdict(texts, (), "allow", "allow", self._policy.mode, self._asked)
            try:
                verdict = await moderated(unjudged, "output", self._policy, ask or nobody)
            except DetectorFailed as failure:
                self.blocked, self.failed = True, failure.rule
            else:
                self._findings.extend(verdict.findings)
                self.blocked = verdict.outcome in ("block", "require_approval")
        self._asked = ()
        if not waited:
            return ()
        if self.blocked:
            self._kept = Answer([Choice(finish_reason=FILTERED) for _ in self._kept.choices])
            self._fresh.clear()
        return self._shown(list(self._kept.deltas()))

    def journal(self) -> str:
        """Return what passed of the first choice's text since it was asked for last."""
        if self._waits:
            return ""
        text = "".join(self._fresh)
        self._fresh.clear()
        new = text[self._written :]
        self._written = max(0, self._written - len(text))
        return new

    def journaled(self, text: str) -> None:
        """Say what an earlier attempt has written: that much comes again."""
        self._written = len(text)

    @property
    def said(self) -> str | None:
        """What its caller is told of it: `flag`, `redact` or `dry_run`; None: nothing."""
        findings = self.findings
        if not findings:
            return None
        if not self._enforced:
            return "dry_run"
        return "redact" if any(found.action == "redact" for found in findings) else "flag"

    def decision(self, task_id: UUID, version: int, *, actor: str) -> Decision | None:
        """Return what is filed of it; nothing where nothing was found."""
        findings = self.findings
        if not findings:
            return None
        return Decision(
            task_id=task_id,
            step=1,
            place="output",
            policy_version=version,
            mode=self._policy.mode,
            outcome=gravest(findings) if self._enforced else "allow",
            findings=[found.document() for found in findings],
            actor=actor,
        )

    @property
    def _enforced(self) -> bool:
        return self._policy.mode == "enforce"

    @property
    def _waits(self) -> bool:
        """Nothing passes before a model has judged the whole."""
        return self._enforced and bool(self._asked)

    def _passed(self, deltas: Sequence[Delta], *, ended: bool) -> Iterator[Delta]:
        for delta in deltas:
            yield from self._screened(delta)
        for number, choice in enumerate(self._passing if ended else ()):
            if not choice.ended:
                yield from self._finished(number, choice, None)

    def _streamed(self) -> Iterator[Finding]:
        for number, choice in enumerate(self._passing):
            for screen in choice.screens.values():
                for found in screen.findings:
                    yield dataclasses.replace(found, part=number)

    def _choice(self, number: int) -> _Passing:
        while len(self._passing) <= number:
            self._passing.append(
                _Passing(
                    screens={name: self._screen_of(name) for name in _CHANNELS},
                    restorers={
                        name: self._redactions.restorer(as_json=self._as_json and name == "text")
                        for name in _CHANNELS
                    },
                )
            )
        return self._passing[number]

    def _screen_of(self, channel: str) -> OutputScreen | JsonScreen:
        whole = self._as_json and channel == "text" and self._screen.applies("output")
        return self._screen.json_output() if whole else self._screen.output()

    def _screened(self, delta: Delta) -> Iterator[Delta]:
        choice = self._choice(delta.choice)
        for name in _CHANNELS:
            if piece := getattr(delta, name):
                yield from self._turned(delta.choice, choice, name)
                yield from self._released(delta.choice, choice, name, piece)
        for piece in delta.tool_calls:
            add_piece(choice.calls, piece)
        if delta.logprobs is not None:
            yield Delta(choice=delta.choice, logprobs=delta.logprobs)
        if delta.finish_reason:
            yield from self._finished(delta.choice, choice, delta.finish_reason)

    def _turned(self, number: int, choice: _Passing, name: str) -> Iterator[Delta]:
        """Yield what the channel that spoke before still has; JSON waits for its own end."""
        before, choice.speaking = choice.speaking, name
        if before not in (None, name) and isinstance(choice.screens[before], OutputScreen):
            yield from self._released(number, choice, before, None)

    def _released(
        self, number: int, choice: _Passing, name: str, piece: str | None
    ) -> Iterator[Delta]:
        """Yield what a channel lets pass; without a piece, all that it still has."""
        screen = choice.screens[name]
        passed = screen.finish() if piece is None else screen.feed(piece)
        if passed:
            yield _words(number, name, passed)
        if screen.blocked:
            self.blocked = True
            raise _Stop

    def _finished(self, number: int, choice: _Passing, reason: str | None) -> Iterator[Delta]:
        for name in _CHANNELS:
            yield from self._released(number, choice, name, None)
        if choice.calls:
            pieces = tuple(
                ToolPiece(place, call.id, call.name, self._arguments(number, call.arguments))
                for place, call in enumerate(choice.calls)
            )
            yield Delta(choice=number, tool_calls=pieces)
        choice.ended = True
        if reason is not None:
            yield Delta(choice=number, finish_reason=reason)

    def _arguments(self, number: int, arguments: str) -> str:
        """Return a call's arguments as they may pass."""
        verdict = self._screen.check_json(arguments, "output")
        self._findings.extend(dataclasses.replace(f, part=number) for f in verdict.findings)
        if verdict.outcome in ("block", "require_approval"):
            self.blocked = True
            raise _Stop
        return verdict.texts[0]

    def _cut_off(self) -> Iterator[Delta]:
        """Yield the end of what was not over yet."""
        for number, choice in enumerate(self._passing):
            if not choice.ended:
                choice.ended = True
                yield Delta(choice=number, finish_reason=FILTERED)

    def _shown(self, kept: Sequence[Delta]) -> tuple[Delta, ...]:
        made = [each for delta in kept for each in self._restored(delta)]
        for delta in made:
            self.shown.add(delta)
        return tuple(made)

    def _restored(self, delta: Delta) -> Iterator[Delta]:
        restorers = self._choice(delta.choice).restorers
        for name in _CHANNELS:
            if piece := getattr(delta, name):
                yield from self._let_go(delta.choice, but=name)
                if text := restorers[name].feed(piece):
                    yield _words(delta.choice, name, text)
        if delta.tool_calls or delta.finish_reason:
            yield from self._let_go(delta.choice)
        if delta.tool_calls or delta.finish_reason or delta.logprobs is not None:
            yield Delta(
                choice=delta.choice,
                tool_calls=tuple(
                    ToolPiece(
                        piece.index,
                        piece.id,
                        piece.name,
                        with_leaves(piece.arguments, self._redactions.restore),
                    )
                    for piece in delta.tool_calls
                ),
                finish_reason=delta.finish_reason,
                logprobs=delta.logprobs,
            )

    def _let_go(self, number: int, *, but: str | None = None) -> Iterator[Delta]:
        """Yield what may have begun a token in channels that say nothing more, and did not."""
        for name, restorer in self._choice(number).restorers.items():
            if name != but and (text := restorer.finish()):
                yield _words(number, name, text)


class _Stop(Exception):
    """Nothing more passes."""


def gate_of(policy: Policy, redactions: Redactions, *, as_json: bool) -> Gate | None:
    """Return what an answer goes through; None: it passes as it comes."""
    if not redactions and not policy.at("output"):
        return None
    return Gate(policy, redactions, as_json=as_json)


def _words(number: int, channel: str, text: str) -> Delta:
    match channel:
        case "reasoning":
            return Delta(choice=number, reasoning=text)
        case "refusal":
            return Delta(choice=number, refusal=text)
        case _:
            return Delta(choice=number, text=text)


def _said(choice: Choice) -> str:
    """Return all that a choice says, for a model that judges it."""
    parts = [choice.reasoning, choice.text, choice.refusal]
    return "\n".join([*filter(None, parts), *(call.arguments for call in choice.calls)])
