"""Test cases of a policy, kept in its file: texts, and what is expected of each.

cases:
  - {text: "write to bob@example.com", expect: redact, rule: people}
  - {text: "the Bluebird project", place: output, expect: block}
  - {text: "mail support@example.com", expect: allow}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from safety.findings import Finding, Outcome
from safety.policy import Place, Policy
from safety.redactions import Redactions
from safety.screen import Screen

__all__ = ["Case", "Judged", "Tried", "judge", "try_cases"]

# An answer is tried in pieces of about a token each.
_PIECE = 4


class Case(BaseModel):
    """A text and what a policy should say of it.

    Attributes:
        text: The text.
        place: Where it comes from.
        expect: The outcome, in a dry run the one that would be.
        rule: The rule that must be among those that matched.
        becomes: The text that must be gone on with, tokens and marks in it.
        name: What the case is called.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    place: Place = "input"
    expect: Outcome
    rule: str | None = None
    becomes: str | None = None
    name: Annotated[str, Field(max_length=200)] = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a policy says of one text.

    Attributes:
        outcome: The gravest action, in a dry run that which would be.
        text: The text to go on with. Of an answer what would have been sent.
        findings: What was found.
        unasked: Ids of rules that ask a model, which is not done here.
    """

    outcome: Outcome
    text: str
    findings: tuple[Finding, ...]
    unasked: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tried:
    """A case, what came of it, and why that is not what was expected, if it is not."""

    case: Case
    judged: Judged
    wrong: str | None


def judge(policy: Policy, text: str, place: Place) -> Judged:
    """Return what a policy says of a text; an answer is screened as a stream.

    Raises:
        DetectorFailed: A rule could not be applied, and the policy says not to go on.
    """
    screen = Screen(policy, Redactions())
    unasked = tuple(rule.id for rule in policy.at(place) if rule.kind == "moderation")
    if place != "output":
        verdict = screen.check([text], place)
        return Judged(verdict.would_be, verdict.texts[0], verdict.findings, unasked)
    stream = screen.output()
    sent = [stream.feed(text[at : at + _PIECE]) for at in range(0, len(text), _PIECE)]
    sent.append(stream.finish())
    return Judged(stream.would_be, "".join(sent), tuple(stream.findings), unasked)


def try_cases(policy: Policy, cases: Sequence[Case]) -> list[Tried]:
    """Try every case.

    Raises:
        DetectorFailed: A rule could not be applied, and the policy says not to go on.
    """
    tried: list[Tried] = []
    for case in cases:
        judged = judge(policy, case.text, case.place)
        tried.append(Tried(case, judged, _wrong(case, judged)))
    return tried


def _wrong(case: Case, judged: Judged) -> str | None:
    if judged.outcome != case.expect:
        return f"expected {case.expect}, and it is {judged.outcome}"
    if case.rule is not None and case.rule not in {found.rule for found in judged.findings}:
        return f"expected a match of rule {case.rule!r}, and there is none"
    if case.becomes is not None and case.becomes != judged.text:
        return f"expected the text {case.becomes!r}, and it is {judged.text!r}"
    return None
