"""What a screen says about texts: where a rule matched, and what follows. Never the content."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from safety.policy import Action, Place, Rule

__all__ = ["GRAVITY", "Finding", "Outcome", "Verdict", "gravest"]

Outcome = Literal["allow", "flag", "redact", "require_approval", "block"]

# From what changes nothing to what stops everything.
GRAVITY: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule matched one span of one text.

    Attributes:
        rule: Its id in the policy.
        kind: Its kind.
        action: What it says to do.
        place: Where the text came from.
        part: Which of the texts that were judged together, from 0.
        start: First character in the text as given.
        end: First character behind it.
        label: What was found, as a name such as EMAIL_ADDRESS.
    """

    rule: str
    kind: str
    action: Action
    place: Place
    part: int
    start: int
    end: int
    label: str

    def document(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Finding:
        """Read what `document` wrote."""
        return cls(**document)


def gravest(findings: Iterable[Finding]) -> Outcome:
    """Return the gravest action among findings; `allow` where there is none."""
    return max((found.action for found in findings), key=GRAVITY.index, default="allow")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy says about texts that were judged together.

    Attributes:
        texts: The texts to go on with: as given, or with what is to be redacted replaced.
        findings: What was found, in order of part and position.
        outcome: The gravest action that applies. In a dry run always `allow`.
        would_be: The outcome if the policy were enforced; equals `outcome` where it is.
        mode: The policy's.
        moderation: The moderation rules that a model must still be asked about, in order. Empty
            once the outcome is `block`.
        failed: Ids of rules that could not be applied, where the policy says to go on without.
    """

    texts: tuple[str, ...]
    findings: tuple[Finding, ...]
    outcome: Outcome
    would_be: Outcome
    mode: Literal["enforce", "dry_run"]
    moderation: tuple[Rule, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def decisive(self) -> Finding | None:
        """The first finding with the gravest action, in a dry run that which would be."""
        return next((found for found in self.findings if found.action == self.would_be), None)

    def moderated(
        self, rule: Rule, place: Place, flagged: Sequence[bool], *, failed: bool = False
    ) -> Verdict:
        """Return the verdict with what a model said for a moderation rule.

        Args:
            rule: One of `moderation`.
            place: Where the texts came from.
            flagged: For each text whether the model objects to it.
            failed: The model could not be asked and the policy says to go on: nothing is
                flagged, and the rule is told among the failed.
        """
        found = (
            ()
            if failed
            else tuple(
                Finding(rule.id, rule.kind, rule.action, place, part, 0, len(text), "MODERATION")
                for part, (text, bad) in enumerate(zip(self.texts, flagged, strict=True))
                if bad and rule.action != "allow"
            )
        )
        findings = self.findings + found
        would_be = gravest(findings)
        rest = tuple(other for other in self.moderation if other.id != rule.id)
        return dataclasses.replace(
            self,
            findings=findings,
            would_be=would_be,
            outcome="allow" if self.mode == "dry_run" else would_be,
            moderation=() if would_be == "block" else rest,
            failed=(*self.failed, rule.id) if failed else self.failed,
        )
