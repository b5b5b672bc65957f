"""What activities say of a verdict across the border, and how a verdict is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from activities.dependencies import Dependencies
from activities.outgoing import Outgoing
from safety.detectors import warm
from safety.findings import Finding, Verdict, gravest
from safety.policy import Place
from safety.redactions import Redactions
from store import decisions
from store.decisions import Decision
from store.screening import About, decision_of
from workflows.contracts import Found, GenerateInput, Safety, Screened
from workflows.contracts.task import Call

__all__ = [
    "Outcome",
    "about",
    "moderated",
    "outcome_before",
    "outcome_of",
    "outgoing_of",
    "screened_of",
    "screened_texts",
]

# A history tells the first of them; the decision's row has more.
_MOST_FOUND = 20


def about(call: Call, safety: Safety, what: str = "") -> About:
    """Return what is screened for a call."""
    return About(
        organisation_id=call.tenant.organisation_id,
        task_id=call.task_id,
        scope=safety.scope,
        policy=safety.version,
        step=call.step,
        what=what,
    )


async def screened_texts(
    deps: Dependencies,
    call: Call,
    safety: Safety | None,
    place: Place,
    texts: Sequence[str],
    what: str = "",
) -> Verdict | None:
    """Screen texts for a call and file what was decided; nothing for a task without a policy.

    Raises:
        DetectorFailed: A rule could not be applied, and the policy says not to go on.
    """
    if safety is None:
        return None
    screened = about(call, safety, what)
    verdict = await deps.screening.check(screened, place, texts)
    if verdict is None:
        return None
    verdict = await moderated(deps, call, safety, place, verdict)
    decision = decision_of(screened, place, verdict)
    if decision is not None:
        await decisions.note(deps.db, call.tenant.organisation_id, [decision])
    return verdict


async def moderated(
    deps: Dependencies, call: Call, safety: Safety, place: Place, verdict: Verdict
) -> Verdict:
    """Return a verdict with what models say, where rules of the policy want them asked."""
    if not verdict.moderation:
        return verdict
    organisation = call.tenant.organisation_id
    policy = await deps.screening.policy(organisation, safety.version)
    return await deps.judging.of(organisation, call.task_id, policy, place, verdict)


def screened_of(safety: Safety | None, verdict: Verdict | None) -> Screened | None:
    """Return a verdict as an activity's result has it."""
    if safety is None or verdict is None or not verdict.findings:
        return None
    decisive = verdict.decisive
    return Screened(
        version=safety.version,
        mode=verdict.mode,
        outcome=verdict.outcome,
        findings=tuple(_found(each) for each in verdict.findings[:_MOST_FOUND]),
        rule=decisive.rule if decisive else None,
    )


async def outgoing_of(deps: Dependencies, call: GenerateInput, shown: str = "") -> Outgoing:
    """Return what the words of a generation pass through.

    Args:
        deps: The worker's.
        call: The generation.
        shown: What an earlier attempt has passed on.
    """
    if call.safety is None:
        return Outgoing(None, Redactions())
    organisation = call.tenant.organisation_id
    policy = await deps.screening.policy(organisation, call.safety.version)
    redactions, _ = await deps.screening.redactions(organisation, call.safety.scope)
    await asyncio.to_thread(warm, policy)
    choosing = call.turn.purpose == "tool_call"
    return Outgoing(
        policy,
        redactions,
        choosing=choosing,
        as_json=choosing or call.output is not None,
        shown=shown,
    )


@dataclass(frozen=True)
class Outcome:
    """What became of a generation's words when all were said.

    Attributes:
        passes: Those that pass yet.
        decision: What is filed with its end.
        screened: The same, across the border.
        sealed: Where what a person must allow is kept.
    """

    passes: str = ""
    decision: Decision | None = None
    screened: Screened | None = None
    sealed: str | None = None


async def outcome_of(
    deps: Dependencies, call: GenerateInput, outgoing: Outgoing, epoch: int
) -> Outcome:
    """Judge a generation's words, now that all are said.

    Raises:
        DetectorFailed: A rule could not be applied, and the policy says not to go on.
    """
    verdict = outgoing.judged()
    if call.safety is None or verdict is None:
        return Outcome()
    verdict = await moderated(deps, call, call.safety, "output", verdict)
    sealed: str | None = None
    if verdict.outcome == "require_approval" and call.turn.purpose == "answer":
        sealed = await deps.held.keep(
            call.tenant.organisation_id,
            call.task_id,
            _held(call),
            {"text": verdict.texts[0]},
        )
    return Outcome(
        passes=outgoing.finish(verdict),
        decision=decision_of(about(call, call.safety, _what(call, epoch)), "output", verdict),
        screened=screened_of(call.safety, verdict),
        sealed=sealed,
    )


async def outcome_before(deps: Dependencies, call: GenerateInput, epoch: int) -> Outcome:
    """Return what became of a generation that an earlier attempt has finished."""
    screened = await screened_before(deps, call, epoch)
    sealed: str | None = None
    if screened is not None and screened.held and call.turn.purpose == "answer":
        sealed = await deps.held.find(call.tenant.organisation_id, call.task_id, _held(call))
    return Outcome(screened=screened, sealed=sealed)


def _held(call: GenerateInput) -> str:
    return f"answer {call.generation_key}"


async def screened_before(deps: Dependencies, call: GenerateInput, epoch: int) -> Screened | None:
    """Return what was decided about a generation that an earlier attempt has finished."""
    if call.safety is None:
        return None
    found = await decisions.read_decisions(deps.db, call.tenant.organisation_id, call.task_id)
    what = _what(call, epoch)
    for each in found:
        if (each.step, each.place, each.what) == (call.step, "output", what):
            findings = tuple(Finding.of(document) for document in each.findings)
            would_be = gravest(findings)
            outcome = "allow" if each.mode == "dry_run" else would_be
            return screened_of(
                call.safety, Verdict((), findings, outcome, would_be, _mode(each.mode))
            )
    return None


def _mode(said: str) -> Literal["enforce", "dry_run"]:
    return "dry_run" if said == "dry_run" else "enforce"


def _what(call: GenerateInput, epoch: int) -> str:
    """Tell the attempts of a step's candidates apart: they may have said different things."""
    return f"#{call.generation_key.rpartition('#')[2]}@{epoch}"


def _found(finding: Finding) -> Found:
    return Found.model_validate(finding.document())
