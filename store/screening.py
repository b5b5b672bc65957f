"""Texts of tasks, screened by the policy a task keeps to: read, judged, what came of it kept.

What is taken out of a text is kept, sealed, before the text without it is used anywhere; of two
that take something out at the same time, the one that comes second looks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from safety.findings import GRAVITY, Outcome, Verdict
from safety.policy import Place, Policy
from safety.redactions import Redactions
from safety.screen import Screen
from store import decisions
from store.database import Database
from store.decisions import Decision
from store.errors import PolicyChanged
from store.policy_view import PolicyView
from store.redactions import RedactionShelf
from store.screened_tasks import TaskScreening

__all__ = ["About", "NewTask", "ScreenedTask", "Screening", "decision_of"]

_NOTHING = Policy()

T = TypeVar("T")


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


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task that is to be filed.

    Attributes:
        texts: What it is asked, by where that comes from.
        inherited: Of a fork: what was taken out of the texts it takes over.
        actor: Who is named in the audit log.
    """

    organisation_id: UUID
    team_id: UUID
    task_id: UUID
    texts: Mapping[Place, Sequence[str]]
    actor: str
    inherited: Redactions | None = None


@dataclass(frozen=True, slots=True)
class ScreenedTask:
    """What screening made of a task that is to be filed.

    Attributes:
        version: Of the policy that holds; 0: there is none.
        texts: The texts to go on with.
        outcome: The gravest that applies.
        rule: Which rule says so, when that blocks it or asks for a person.
        judges: Models are to judge it yet.
        filed: What is filed with it.
    """

    version: int
    texts: Mapping[Place, Sequence[str]]
    outcome: Outcome
    rule: str | None
    judges: bool
    filed: TaskScreening


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

    async def of_new(self, task: NewTask) -> ScreenedTask | None:
        """Screen what a task is asked; nothing where, as far as is known, no policy holds.

        What filing it says in the end is `PolicyChanged`, if another one holds by then: look at
        what does (`look`), and ask again.

        Raises:
            DetectorFailed: A rule could not be applied, and the policy says not to go on.
        """
        held = self.policies.of_team(task.organisation_id, task.team_id)
        version = held.version if held else 0
        if not version and not task.inherited:
            return None
        policy = (held.policy if held else None) or _NOTHING
        redactions = Redactions.of((task.inherited or Redactions()).document())
        screen = Screen(policy, redactions)
        verdicts = await asyncio.to_thread(screen.check_all, task.texts)
        filed: list[Decision] = []
        decisive: tuple[Outcome, str | None] = ("allow", None)
        for place, verdict in verdicts.items():
            about = About(
                task.organisation_id, task.task_id, task.task_id, version, 0, actor=task.actor
            )
            if (decision := decision_of(about, place, verdict)) is not None:
                filed.append(decision)
            if GRAVITY.index(verdict.outcome) > GRAVITY.index(decisive[0]):
                decisive = verdict.outcome, verdict.decisive.rule if verdict.decisive else None
        document = redactions.document()
        sealed = (
            self.shelf.seal(task.organisation_id, task.task_id, document)
            if any(document.values())
            else None
        )
        return ScreenedTask(
            version=version,
            texts={place: verdict.texts for place, verdict in verdicts.items()},
            outcome=decisive[0],
            rule=decisive[1],
            judges=any(verdict.moderation for verdict in verdicts.values()),
            filed=TaskScreening(tuple(filed), sealed),
        )

    async def filed(
        self, organisation_id: UUID, team_id: UUID, file: Callable[[], Awaitable[T]]
    ) -> T:
        """File something by the policy that holds for a team at that moment.

        Args:
            organisation_id: Whose team it is.
            team_id: The team.
            file: Screens and files it; does so again where another policy holds by then.
        """
        while True:
            try:
                return await file()
            except PolicyChanged:
                await self.policies.look_at_team(organisation_id, team_id)

    async def refused(
        self, organisation_id: UUID, team_id: UUID, version: int, filed: Sequence[Decision]
    ) -> None:
        """File what was decided about what a version of the policy does not let in.

        Raises:
            PolicyChanged: Another one holds by now: nothing is refused by one that holds no more.
        """
        held = await self.policies.look_at_team(organisation_id, team_id)
        if held.version != version:
            raise PolicyChanged("another safety policy holds by now")
        await decisions.note(self._db, organisation_id, filed)

    async def policy(self, organisation_id: UUID, version: int) -> Policy:
        """Return a version of the policy; 0 is the one that says nothing."""
        if not version:
            return _NOTHING
        return await self.policies.version(organisation_id, version)

    async def check(self, about: About, place: Place, texts: Sequence[str]) -> Verdict | None:
        """Screen texts and keep what was taken out of them; nothing where no rule says anything.

        Raises:
            DetectorFailed: A rule could not be applied, and the policy says not to go on.
            DatabaseUnavailable: Policy or redactions could not be read or kept.
        """
        policy = await self.policy(about.organisation_id, about.policy)
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
    return (await asyncio.to_thread(screen.check_all, {place: texts}))[place]
