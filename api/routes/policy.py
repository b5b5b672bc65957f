"""Safety policies: what the texts of a team's calls and tasks are screened by."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from api.authentication import AdminCaller, parts_of
from api.openapi import answers
from api.parts import Parts
from api.problems import not_found
from safety.detectors import warm
from safety.errors import DetectorFailed
from safety.findings import Outcome, Verdict
from safety.policy import Action, Place, Policy
from safety.redactions import Redactions
from safety.screen import Screen
from store import policies
from store.errors import NotFound
from store.identity import Principal
from store.keys import get_team
from workflows.errors import SafetyUnavailable

__all__ = ["router"]

router = APIRouter(tags=["policy"])

PartsOf = Annotated[Parts, Depends(parts_of)]
Team = Annotated[
    UUID | None, Query(description="Id of the team; none: the organisation's, for all teams.")
]
_MOST_TEXTS = 100
_LONGEST_TEXT = 100_000


class PolicyView(BaseModel):
    """The policy that holds."""

    model_config = ConfigDict(frozen=True)

    version: int = Field(description="Its number in the organisation; decisions name it.")
    scope: Literal["organisation", "team"] = Field(description="Whose it is.")
    team_id: UUID | None = Field(description="Id of the team, if it is a team's own.")
    document: dict[str, Any] = Field(description="What it says.")
    created_at: datetime = Field(description="When it was set, RFC 3339 in UTC.")
    created_by: str = Field(description="Prefix of the key that set it.")


class UnsetPolicy(BaseModel):
    """A policy that does not hold any more."""

    model_config = ConfigDict(frozen=True)

    version: int = Field(description="Number of the version that says so.")
    team_id: UUID | None = Field(description="Id of the team, if it was a team's own.")


class PolicyTest(BaseModel):
    """Texts to be judged; nothing is kept of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    texts: Annotated[
        tuple[Annotated[str, Field(max_length=_LONGEST_TEXT)], ...],
        Field(min_length=1, max_length=_MOST_TEXTS),
    ] = Field(description="The texts.")
    place: Place = Field(default="input", description="Where they would come from.")
    policy: Policy | None = Field(
        default=None, description="A policy to try; none: the one that holds."
    )


class TestFinding(BaseModel):
    """Where a rule matched."""

    model_config = ConfigDict(frozen=True)

    rule: str = Field(description="Id of the rule.")
    kind: str = Field(description="Kind of the rule.")
    action: Action = Field(description="What it says to do.")
    part: int = Field(description="Which of the texts, from 0.")
    start: int = Field(description="Its first character.")
    end: int = Field(description="The first character behind it.")
    label: str = Field(description="What was found, as EMAIL_ADDRESS.")


class PolicyTested(BaseModel):
    """What a policy says about texts."""

    model_config = ConfigDict(frozen=True)

    outcome: Outcome = Field(description="The gravest action that applies; in a dry run `allow`.")
    would_be: Outcome = Field(description="The outcome if the policy were enforced.")
    mode: Literal["enforce", "dry_run"] = Field(description="The policy's mode.")
    texts: tuple[str, ...] = Field(description="The texts as they would go on.")
    findings: tuple[TestFinding, ...] = Field(description="What was found.")
    not_asked: tuple[str, ...] = Field(
        description="Ids of moderation rules: no model is asked here."
    )
    failed: tuple[str, ...] = Field(description="Ids of rules that could not be applied.")


@router.get("/v1/policy", responses=answers(404), summary="Read the safety policy")
async def get_policy(caller: AdminCaller, parts: PartsOf, team: Team = None) -> PolicyView:
    """Read the policy that holds for a team, whosever it is, or the organisation's own."""
    found = await _held(parts, caller, team)
    if found is None:
        raise not_found("policy")
    return found


@router.put("/v1/policy", responses=answers(404, body=True), summary="Set the safety policy")
async def set_policy(
    caller: AdminCaller, parts: PartsOf, wanted: Policy, team: Team = None
) -> PolicyView:
    """Set a team's own policy, or the organisation's; it holds from the next call on."""
    try:
        made = await policies.set_policy(
            parts.database,
            caller.organisation_id,
            wanted.document(),
            team_id=team,
            actor=caller.key_prefix,
        )
    except NotFound:
        raise not_found("team") from None
    return await _version(parts, caller, made)


@router.delete("/v1/policy", responses=answers(404), summary="Unset the safety policy")
async def unset_policy(caller: AdminCaller, parts: PartsOf, team: Team = None) -> UnsetPolicy:
    """Take a team's own policy away, so that the organisation's holds; or the organisation's."""
    try:
        gone = await policies.unset_policy(
            parts.database, caller.organisation_id, team_id=team, actor=caller.key_prefix
        )
    except NotFound:
        raise not_found("team") from None
    if gone is None:
        raise not_found("policy")
    return UnsetPolicy(version=gone, team_id=team)


@router.post("/v1/policy/test", responses=answers(404, body=True), summary="Try a safety policy")
async def try_policy(
    caller: AdminCaller, parts: PartsOf, asked: PolicyTest, team: Team = None
) -> PolicyTested:
    """Say what a policy would do with texts; nothing is filed, and no model is asked."""
    policy = asked.policy
    if policy is None:
        held = await _held(parts, caller, team)
        if held is None:
            raise not_found("policy")
        policy = Policy.of(held.document)
    try:
        verdict = await asyncio.to_thread(_judged, policy, asked)
    except DetectorFailed as failure:
        raise SafetyUnavailable(
            f"The rule {failure.rule!r} cannot be applied.", rule=failure.rule
        ) from failure
    return PolicyTested(
        outcome=verdict.outcome,
        would_be=verdict.would_be,
        mode=verdict.mode,
        texts=verdict.texts,
        findings=tuple(
            TestFinding.model_validate(found, from_attributes=True) for found in verdict.findings
        ),
        not_asked=tuple(rule.id for rule in verdict.moderation),
        failed=verdict.failed,
    )


def _judged(policy: Policy, asked: PolicyTest) -> Verdict:
    warm(policy)
    return Screen(policy, Redactions()).check(asked.texts, asked.place)


async def _held(parts: Parts, caller: Principal, team: UUID | None) -> PolicyView | None:
    """Return what holds for a team, or the organisation's own."""
    if team is not None:
        if await get_team(parts.database, caller.organisation_id, team) is None:
            raise not_found("team")
        held = await policies.in_force(parts.database, caller.organisation_id, team)
        return await _version(parts, caller, held.version) if held.version else None
    newest = await policies.list_versions(
        parts.database, caller.organisation_id, team_id=None, limit=1
    )
    return _view(newest[0]) if newest and newest[0].document is not None else None


async def _version(parts: Parts, caller: Principal, version: int) -> PolicyView:
    found = await policies.read_version(parts.database, caller.organisation_id, version)
    assert found is not None
    return _view(found)


def _view(found: policies.PolicyVersion) -> PolicyView:
    assert found.document is not None
    return PolicyView(
        version=found.version,
        scope="organisation" if found.team_id is None else "team",
        team_id=found.team_id,
        document=found.document,
        created_at=found.created_at,
        created_by=found.created_by,
    )
