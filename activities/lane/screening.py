"""A call's own texts, screened before anything of it is filed, cached or sent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from activities.judging import Ask, moderated
from activities.lane.gate import Gate, gate_of
from activities.lane.texts import is_json
from inference.answers import Answer
from safety.errors import DetectorFailed
from safety.findings import GRAVITY, Outcome, Verdict
from safety.policy import Place, Policy
from safety.redactions import Redactions
from safety.screen import Screen
from store.decisions import Decision
from workflows.contracts.call import CallSpec
from workflows.errors import InvalidRequest, OverlineError
from workflows.screening import needs_a_person, not_allowed, not_judged

__all__ = [
    "ScreenedCall",
    "StoppedByPolicy",
    "refuse_unscreenable",
    "screened",
]


@dataclass(frozen=True, slots=True)
class ScreenedCall:
    """What screening made of a call.

    Attributes:
        version: Of the policy; 0: there is none, and nothing was looked at.
        decisions: What is filed of it.
        said: What its caller is told in a header: `flag`, `redact` or `dry_run`.
    """

    version: int = 0
    policy: Policy | None = None
    redactions: Redactions = field(default_factory=Redactions)
    decisions: tuple[Decision, ...] = ()
    said: str | None = None

    def marked(self, answer: Answer, said: str | None) -> dict[str, Any]:
        """Return an answer as it is kept, with what whoever reads it again must know."""
        kept = answer.document()
        if self.redactions:
            kept["redacted"] = True
        if said is not None:
            kept["safety"] = said
        return kept

    def gate(self, spec: CallSpec) -> Gate | None:
        """Return what the answer goes through; None: it passes as it comes."""
        if self.policy is None:
            return None
        return gate_of(self.policy, self.redactions, as_json=is_json(spec))


class StoppedByPolicy(Exception):
    """The policy does not let the call begin.

    Attributes:
        rule: Which rule of it.
        decision: What is filed.
        told: What its caller is told.
    """

    def __init__(self, rule: str, decision: Decision, told: OverlineError) -> None:
        super().__init__(rule)
        self.rule = rule
        self.decision = decision
        self.told = told


async def screened(
    texts: Mapping[Place, Sequence[str]],
    *,
    policy: Policy,
    version: int,
    task_id: UUID,
    actor: str,
    ask: Ask,
) -> tuple[dict[Place, Sequence[str]], ScreenedCall]:
    """Screen a call's texts.

    Args:
        texts: By where they come from.
        policy: What holds for its caller.
        version: Which version that is.
        task_id: The task that it will be.
        actor: Who is named in the audit log.
        ask: Has a model judge.

    Returns:
        The texts to go on with, and what is to be said of it.

    Raises:
        StoppedByPolicy: It must not begin.
        SafetyUnavailable: A rule cannot be applied, and the policy says not to go on.
    """
    redactions = Redactions()
    screen = Screen(policy, redactions)
    made: dict[Place, Sequence[str]] = {}
    decisions: list[Decision] = []
    gravest: Outcome = "allow"
    try:
        verdicts = await asyncio.to_thread(screen.check_all, texts)
        for place, verdict in verdicts.items():
            verdict = await moderated(verdict, place, policy, ask)
            made[place] = verdict.texts
            if not verdict.findings:
                continue
            decision = Decision(
                task_id=task_id,
                step=1,
                place=place,
                policy_version=version,
                mode=verdict.mode,
                outcome=verdict.outcome,
                findings=[found.document() for found in verdict.findings],
                actor=actor,
            )
            decisions.append(decision)
            gravest = max(gravest, verdict.outcome, key=GRAVITY.index)
            if verdict.outcome in ("block", "require_approval"):
                raise _stopped(verdict, decision)
    except DetectorFailed as failure:
        raise not_judged(failure.rule) from failure
    said: str | None = gravest if gravest != "allow" else None
    if decisions and policy.mode == "dry_run":
        said = "dry_run"
    return made, ScreenedCall(version, policy, redactions, tuple(decisions), said)


def refuse_unscreenable(spec: CallSpec, policy: Policy) -> None:
    """Refuse what an answer that is screened cannot have.

    Raises:
        InvalidRequest: It asks for the tokens of the answer, which would say what is taken out.
    """
    if spec.parameters.get("logprobs") and policy.mode == "enforce" and policy.at("output"):
        raise InvalidRequest(
            "'logprobs' is not supported: a safety policy screens the answer.",
            param="logprobs",
            code="unsupported_parameter",
        )


def _stopped(verdict: Verdict, decision: Decision) -> StoppedByPolicy:
    decisive = verdict.decisive
    rule = decisive.rule if decisive else ""
    told = not_allowed(rule) if verdict.outcome == "block" else needs_a_person(rule)
    return StoppedByPolicy(rule, decision, told)
