"""Whose turn it is in a session: the checks of a submission, then the task's row."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from uuid import UUID

from temporalio import activity
from uuid_utils.compat import uuid7

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.filing import Screened
from observability.metrics import record_refusal, record_task
from store import sessions, turns
from store.errors import DatabaseUnavailable, StoreError
from store.pricing import UnknownName, Unpriced, models_of, worst_case_usd
from store.refusals import Refusal
from store.screened_tasks import TaskScreening
from store.screening import About, decision_of
from store.tasks import Submitted
from workflows.contracts import FiledRequest, NextTurn, SessionInput, TaskRequest, Tenant
from workflows.errors import BudgetExceeded, ContentBlocked, Forbidden, KeyRefused, NotFound
from workflows.planning import headline, plan_task
from workflows.request_digest import digest_of_request
from workflows.screening import filed_as, texts_of, with_texts
from workflows.transcript import extend, said

__all__ = ["Sessions"]


class Sessions:
    """Files the turns of sessions, each once and in order."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    @activity.defn(name="sessions.next")
    @typed_failures
    async def next(self, session: SessionInput) -> NextTurn:
        """File the task of the oldest message whose turn has not come, or find the one that runs.

        What is refused is noted with its code, and has had its turn.
        """
        organisation, session_id = session.organisation_id, session.session_id
        head = await turns.head(self._deps.db, organisation, session_id)
        if head is None:
            found = await sessions.get_session(self._deps.db, organisation, session_id)
            return NextTurn(closed=found is None or found.closed_at is not None)
        if head.task_id is not None:
            running = FiledRequest.model_validate(head.input)
            return _turn(head, running, (head.digest or "", head.chars or 0))
        if not head.key_stands:
            return await self._refuse(
                session, head, KeyRefused.code, "the key was disabled or has expired"
            )
        if "tasks" not in head.principal.scopes:
            return await self._refuse(
                session, head, Forbidden.code, "the key lacks the scope `tasks`"
            )
        request = TaskRequest.model_validate({**head.resolved, "input": head.content})
        if request.priority == "interactive" and "interactive" not in head.principal.scopes:
            return await self._refuse(
                session, head, Forbidden.code, "the key lacks the scope `interactive`"
            )
        catalogue = await self._deps.catalogue.read()
        try:
            models = models_of(catalogue, request.route, request.model)
            first_call = worst_case_usd(catalogue, models, head.first_max_tokens)
        except (UnknownName, Unpriced) as error:
            return await self._refuse(session, head, NotFound.code, str(error))
        before = await self._before(session, head)
        try:
            verdict, filed = await self._file(session_id, head, request, first_call, before)
        except DatabaseUnavailable:
            raise
        except ContentBlocked as error:
            return await self._refuse(session, head, ContentBlocked.code, error.message)
        except StoreError as error:
            # What the key may not use, in the store's own words. A message that cannot be filed
            # must not keep those behind it from their turns.
            return await self._refuse(session, head, KeyRefused.code, str(error))
        if isinstance(verdict, Refusal):
            record_refusal(verdict.code, verdict.scope)
            if verdict.code != "budget_exceeded":
                return await self._refuse(session, head, KeyRefused.code, "the key is refused")
            words = f"the {verdict.scope}'s budget is too small for one call"
            return await self._refuse(session, head, BudgetExceeded.code, words)
        if verdict.created:
            record_task("accepted")
        return _turn(replace(head, task_id=verdict.task_id), filed, before)

    async def _file(
        self,
        session_id: UUID,
        head: turns.Head,
        request: TaskRequest,
        first_call: Decimal,
        before: tuple[str, int],
    ) -> tuple[Submitted | Refusal, TaskRequest]:
        """Screen the turn and file it; screen it again if another policy holds by then.

        Raises:
            ContentBlocked: A rule of the policy blocks it.
        """
        payer, task_id = head.principal, uuid7()
        digest = self._deps.sealer.keyed(digest_of_request(request.model_dump(mode="json")))

        async def file() -> tuple[Submitted | Refusal, TaskRequest]:
            screened = await self._screened(session_id, head, task_id, request)
            verdict = await turns.file_turn(
                self._deps.db,
                payer,
                session_id=session_id,
                number=head.number,
                digest=before[0],
                chars=before[1],
                task_id=task_id,
                # A caller's key holds no blank, so it is never one of these.
                idempotency_key=f"session {session_id} {head.number}",
                request_digest=digest,
                input=screened.request.model_dump(mode="json"),
                user=request.user,
                tags=dict(request.tags),
                route=request.route,
                worst_case_usd=first_call,
                max_cost_usd=request.limits.max_cost_usd
                or self._deps.settings.default_max_cost_usd,
                screening=screened.filed,
                content=screened.request.input,
            )
            return verdict, screened.request

        return await self._deps.screening.filed(payer.organisation_id, payer.team_id, file)

    async def _screened(
        self, session_id: UUID, head: turns.Head, task_id: UUID, request: TaskRequest
    ) -> Screened:
        """Screen a turn; what is taken out of its texts is its session's, and its team's to read.

        Raises:
            ContentBlocked: A rule of the policy blocks it; that is on file.
            PolicyChanged: Another policy holds than the one whose rule blocks it.
        """
        payer, screening = head.principal, self._deps.screening
        organisation, texts = payer.organisation_id, texts_of(request)
        held = screening.policies.of_team(organisation, payer.team_id)
        if held is None or not held.version:
            return Screened(request)
        about = About(organisation, task_id, session_id, held.version, 0, actor=payer.key_prefix)
        verdict = await screening.check(about, "input", texts)
        decision = decision_of(about, "input", verdict) if verdict is not None else None
        filed = [decision] if decision is not None else []
        rule = verdict.decisive.rule if verdict is not None and verdict.decisive else None
        outcome = verdict.outcome if verdict is not None else "allow"
        if outcome == "block":
            await screening.refused(organisation, payer.team_id, held.version, filed)
            raise ContentBlocked(f"rule {rule!r} blocks what was said", rule=rule)
        return Screened(
            filed_as(
                request if verdict is None else with_texts(request, verdict.texts),
                version=held.version,
                scope=session_id,
                team=head.session_team,
                asks=rule if outcome == "require_approval" else None,
                judges=verdict is not None and bool(verdict.moderation),
            ),
            TaskScreening(filed),
        )

    async def _before(self, session: SessionInput, head: turns.Head) -> tuple[str, int]:
        """Return digest and length of what was said in the session before a message."""
        before = await turns.before(
            self._deps.db, session.organisation_id, session.session_id, head.number
        )
        digest, chars = before.digest, before.chars
        for role, content in before.turn:
            digest, chars = extend(digest, said(role, content)), chars + len(content)
        return digest, chars

    async def _refuse(
        self, session: SessionInput, head: turns.Head, code: str, detail: str
    ) -> NextTurn:
        await turns.refuse_turn(
            self._deps.db,
            session.organisation_id,
            session.session_id,
            head.number,
            code=code,
            detail=detail,
        )
        return NextTurn(number=head.number, code=code)


def _turn(head: turns.Head, request: TaskRequest, before: tuple[str, int]) -> NextTurn:
    assert head.task_id is not None
    tenant = Tenant(
        organisation_id=head.principal.organisation_id,
        team_id=head.principal.team_id,
        key_id=head.principal.key_id,
    )
    task = plan_task(head.task_id, tenant, request, before)
    return NextTurn(
        number=head.number, task=task, headline=f"turn {head.number}: {headline(task)}"[:180]
    )
