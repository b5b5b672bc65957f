"""Applies a policy to texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from safety.deciding import Decided, decide
from safety.detectors import warm
from safety.findings import Finding, Verdict, gravest
from safety.json_screen import JsonScreen
from safety.json_text import leaves_of, with_leaves
from safety.policy import Place, Policy
from safety.redactions import Redactions, mark
from safety.stream import OutputScreen
from safety.text import Text

__all__ = ["JsonScreen", "OutputScreen", "Screen"]


class Screen:
    """A policy, applied with the redactions of one task.

    Synchronous, and nothing but computing: some tenths of a millisecond for a kilobyte. The first
    use of a policy may load libraries for seconds: call `safety.detectors.warm` in a thread first.
    """

    def __init__(self, policy: Policy, redactions: Redactions) -> None:
        """Takes the policy, and the task's map of tokens, which grows as texts are redacted."""
        self.policy = policy
        self.redactions = redactions

    def applies(self, place: Place) -> bool:
        """Whether any rule says something about texts from there."""
        return any(place in rule.on for rule in self.policy.rules)

    def check_all(self, texts: Mapping[Place, Sequence[str]]) -> dict[Place, Verdict]:
        """Judge all that belongs together, by where it comes from; loads what the rules need.

        Raises:
            DetectorFailed: A rule could not be applied, and the policy says not to go on.
        """
        warm(self.policy)
        for given in texts.values():
            # Before the first token is given out, whichever text it is for.
            for text in given:
                self.redactions.reserve(text)
        return {place: self.check(given, place) for place, given in texts.items()}

    def check(self, texts: Sequence[str], place: Place) -> Verdict:
        """Judge texts; what is redacted on the way in gets tokens, what is on the way out marks.

        Raises:
            DetectorFailed: A rule could not be applied, and the policy says not to go on.
        """
        rules = self.policy.at(place)
        if not rules:
            return Verdict(tuple(texts), (), "allow", "allow", self.policy.mode)
        judged = [rule for rule in rules if rule.kind != "moderation"]
        if place != "output":
            for text in texts:  # before the first token is given out
                self.redactions.reserve(text)
        # JSON says the same names again and again.
        each = {
            text: decide(
                Text(text),
                judged,
                ours=self.redactions.spans(text),
                go_on=self.policy.on_failure == "allow" or self.policy.mode == "dry_run",
            )
            for text in dict.fromkeys(texts)
        }
        decisions = [each[text] for text in texts]
        findings = tuple(
            Finding(span.rule.id, span.rule.kind, span.rule.action, place, part,
                    span.start, span.end, span.label)
            for part, decided in enumerate(decisions)
            for span in decided.spans
        )  # fmt: skip
        would_be = gravest(findings)
        enforced = self.policy.mode == "enforce"
        return Verdict(
            texts=tuple(
                self._redacted(text, decided, place) if enforced else text
                for text, decided in zip(texts, decisions, strict=True)
            ),
            findings=findings,
            outcome=would_be if enforced else "allow",
            would_be=would_be,
            mode=self.policy.mode,
            moderation=()
            if would_be == "block"
            else tuple(rule for rule in rules if rule.kind == "moderation"),
            failed=tuple(dict.fromkeys(rule for one in each.values() for rule in one.failed)),
        )

    def check_json(self, text: str, place: Place) -> Verdict:
        """Judge JSON text by what is in it; its one text stays JSON. The parts are its leaves.

        Raises:
            DetectorFailed: A rule could not be applied, and the policy says not to go on.
        """
        verdict = self.check(leaves_of(text) or [""], place)
        made = iter(verdict.texts)
        return dataclasses.replace(verdict, texts=(with_leaves(text, lambda _: next(made)),))

    def output(self) -> OutputScreen:
        """Return a screen for one answer that comes in pieces."""
        return OutputScreen(self.policy, self.redactions)

    def json_output(self) -> JsonScreen:
        """Return a screen for one answer that is JSON and comes in pieces."""
        return JsonScreen(
            lambda text: self.check_json(text, "output"), enforced=self.policy.mode == "enforce"
        )

    def _redacted(self, text: str, decided: Decided, place: Place) -> str:
        """Return a text with what is to be redacted replaced."""
        pieces: list[str] = []
        at = 0
        for span in decided.spans:
            if span.rule.action == "redact":
                token = (
                    mark(span.label)
                    if place == "output"
                    else self.redactions.token(span.label, text[span.start : span.end])
                )
                pieces += [text[at : span.start], token]
                at = span.end
        return "".join([*pieces, text[at:]])
