"""Texts of tasks, screened by the policy a task keeps to: read, judged, what came of it kept.

What is taken out of a text is kept, sealed, before the text without it is used anywhere; of two
that take something out at the same time, the one that comes second looks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from safety.findings import Verdict
from safety.policy import Place, Policy
from safety.redactions import Redactions
from safety.screen import Screen
from store import decisions
from store.database import Database
from store.decisions import Decision
from store.policy_view import PolicyView
from store.redactions import RedactionShelf

__all__ = ["About", "Screening", "decision_of"]


@dataclass(frozen=True, slots=True)
class About:
    """What is screened, and for which task.

    Attributes:
        scope: Whose redactions it shares.
        policy: Version of the policy it keeps to.
        what: Tells apart what is screened in one step at one place.
        actor: Who is named in the audit log.
    """

    organisation_id: UUID
    task_id: UUID
    scope: UUID
    policy: int
    step: int
    what: str = ""
    actor: str = "overline"


def decision_of(about: About, place: Place, verdict: Verdict) -> Decision | None:
    """Return what is filed of a verdict; nothing where nothing was found."""
    if not verdict.findings:
        return None
    return Decision(
        task_id=about.task_id,
        step=about.step,
        place=place,
        policy_version=about.policy,
        mode=verdict.mode,
        outcome=verdict.outcome,
        findings=[found.document() for found in verdict.findings],
        what=about.what,
        actor=about.actor,
    )


class Screening:
    """Screens texts in this process.

    Attributes:
        policies: The policies, as this process knows them.
        shelf: What was taken out of texts.
    """

    def __init__(self, db: Database, policies: PolicyView[Policy], shelf: RedactionShelf) -> None:
        self._db = db
        self.policies = policies
        self.shelf = shelf

    async def redactions(self, organisation_id: UUID, scope: UUID) -> tuple[Redactions, int]:
        """Return what was taken out of texts so far, and the version of that."""
        kept = await self.shelf.read(organisation_id, scope)
        return (Redactions.of(kept.document) if kept.version else Redactions()), kept.version

    async def check(self, about: About, place: Place, texts: Sequence[str]) -> Verdict | None:
        """Screen texts and keep what was taken out of them; nothing where no rule says anything.

        Raises:
            DetectorFailed: A rule could not be applied, and the policy says not to go on.
            DatabaseUnavailable: Policy or redactions could not be read or kept.
        """
        policy = await self.policies.version(about.organisation_id, about.policy)
        if not texts or not policy.at(place):
            return None
        while True:
            redactions, version = await self.redactions(about.organisation_id, about.scope)
            before = redactions.document()
            verdict = await judged(Screen(policy, redactions), place, texts)
            after = redactions.document()
            if after == before or await self.shelf.keep(
                about.organisation_id, about.scope, after, version=version
            ):
                return verdict

    async def checked(self, about: About, place: Place, texts: Sequence[str]) -> Verdict | None:
        """The same, and file what was decided."""
        verdict = await self.check(about, place, texts)
        decision = decision_of(about, place, verdict) if verdict is not None else None
        if decision is not None:
            await decisions.note(self._db, about.organisation_id, [decision])
        return verdict


async def judged(screen: Screen, place: Place, texts: Sequence[str]) -> Verdict:
    """Judge texts off the event loop: long ones take a while, and a rule's first use seconds."""
    return await asyncio.to_thread(screen.check, texts, place)
