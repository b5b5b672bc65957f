"""Models that judge texts for the moderation rules of a task's policy, by calls of their own.

Such a call is made and metered like any other of the task's key, with its user and its tags and
`purpose: moderation` beside them. Who cannot be asked has not judged: the policy says what then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from uuid import UUID

from safety.errors import DetectorFailed
from safety.findings import Verdict
from safety.policy import Place, Policy, Rule
from store.database import Database
from store.identity import Origin

__all__ = ["Ask", "Judge", "Judging", "Payer", "moderated", "nobody"]

#: Has a model judge texts for a moderation rule: for each, whether it objects.
Ask = Callable[[Rule, Sequence[str]], Awaitable[list[bool]]]


async def nobody(rule: Rule, texts: Sequence[str]) -> list[bool]:
    """Judge nothing: there is no one here who can be asked.

    Raises:
        DetectorFailed: Always.
    """
    raise DetectorFailed(rule.id, "nobody can be asked here")


async def moderated(verdict: Verdict, place: Place, policy: Policy, ask: Ask) -> Verdict:
    """Return a verdict with what models say, where rules want them asked.

    Raises:
        DetectorFailed: One could not be asked, and the policy says not to go on.
    """
    while verdict.moderation:
        rule = verdict.moderation[0]
        try:
            verdict = verdict.moderated(rule, place, await ask(rule, verdict.texts))
        except DetectorFailed:
            if policy.mode == "enforce" and policy.on_failure == "block":
                raise
            verdict = verdict.moderated(rule, place, (), failed=True)
    return verdict


@dataclass(frozen=True, slots=True)
class Payer:
    """Who pays for a judgement: the key of a task, with the task's user and tags."""

    key_id: UUID
    key_digest: bytes
    user: str | None
    tags: Mapping[str, str]
    origin: Origin


class Judge(Protocol):
    """Has a model judge texts."""

    async def judge(self, rule: Rule, texts: Sequence[str], payer: Payer) -> list[bool]:
        """Tell of each text whether the rule's model objects to it.

        Raises:
            DetectorFailed: It could not be asked.
        """


class Judging:
    """Asks for the tasks of this process.

    Attributes:
        judge: Who asks; none: nobody can be asked here.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self.judge: Judge | None = None

    async def of(
        self, organisation_id: UUID, task_id: UUID, policy: Policy, place: Place, verdict: Verdict
    ) -> Verdict:
        """Return a verdict with what models say, where rules want them asked.

        Raises:
            DetectorFailed: One could not be asked, and the policy says not to go on.
        """
        ask = partial(self._asked, organisation_id, task_id)
        return await moderated(verdict, place, policy, ask)

    async def _asked(
        self, organisation_id: UUID, task_id: UUID, rule: Rule, texts: Sequence[str]
    ) -> list[bool]:
        rows = await self._db.run(
            organisation_id,
            "select t.key_id, t.user_id, t.tags, k.secret_hash,"
            " host(k.addresses[1]) as address, coalesce(k.endpoints[1], '/v1/tasks') as endpoint"
            " from tasks t join api_keys k using (organisation_id, key_id)"
            " where t.organisation_id = %s and t.task_id = %s",
            (organisation_id, task_id),
        )
        if self.judge is None or not rows:
            return await nobody(rule, texts)
        row = rows[0]
        payer = Payer(
            key_id=row["key_id"],
            key_digest=bytes(row["secret_hash"]),
            user=row["user_id"],
            tags=row["tags"],
            # The key's restrictions were asked when it filed the task: this is no request of its.
            origin=Origin(row["address"], row["endpoint"]),
        )
        return await self.judge.judge(rule, texts, payer)
