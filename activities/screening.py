"""What activities say of a verdict across the border, and how a verdict is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from activities.dependencies import Dependencies
from activities.outgoing import Outgoing
from safety.findings import Finding, Verdict, gravest
from safety.policy import Place
from safety.redactions import Redactions
from store import decisions
from store.decisions import Decision
from store.screening import About, decision_of
from workflows.contracts import Found, GenerateInput, Safety, Screened
from workflows.contracts.task import Call

__all__ = [
    "about",
    "outgoing_of",
    "output_decision",
    "screened_before",
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
    """Screen texts for a call and file what was decided; nothing for a task without a policy."""
    if safety is None:
        return None
    return await deps.screening.checked(about(call, safety, what), place, texts)


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
        return Outgoing(None, Redactions(), whole=False)
    organisation = call.tenant.organisation_id
    policy = await deps.screening.policies.version(organisation, call.safety.version)
    redactions, _ = await deps.screening.redactions(organisation, call.safety.scope)
    choosing = call.turn.purpose == "tool_call"
    return Outgoing(policy, redactions, whole=choosing, shown=shown)


def output_decision(call: GenerateInput, outgoing: Outgoing, epoch: int) -> Decision | None:
    """Return what is filed with the end of a generation."""
    if call.safety is None or outgoing.verdict is None:
        return None
    return decision_of(about(call, call.safety, _what(call, epoch)), "output", outgoing.verdict)


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
