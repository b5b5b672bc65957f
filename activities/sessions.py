"""Whose turn it is in a session: the checks of a submission, then the task's row."""

from __future__ import annotations

from dataclasses import replace

from temporalio import activity
from uuid_utils.compat import uuid7

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.filing import digest_of_request
from observability.metrics import record_refusal, record_task
from store import sessions, turns
from store.errors import DatabaseUnavailable, StoreError
from store.pricing import UnknownName, Unpriced, models_of, worst_case_usd
from store.refusals import Refusal
from workflows.contracts import NextTurn, SessionInput, TaskRequest, Tenant
from workflows.errors import BudgetExceeded, Forbidden, KeyRefused, NotFound
from workflows.planning import headline, plan_task
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
            running = TaskRequest.model_validate(head.input)
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
        stored = request.model_dump(mode="json")
        try:
            verdict = await turns.file_turn(
                self._deps.db,
                head.principal,
                session_id=session_id,
                number=head.number,
                digest=before[0],
                chars=before[1],
                task_id=uuid7(),
                # A caller's key holds no blank, so it is never one of these.
                idempotency_key=f"session {session_id} {head.number}",
                request_digest=digest_of_request(stored),
                input=stored,
                user=request.user,
                tags=dict(request.tags),
                route=request.route,
                worst_case_usd=first_call,
                max_cost_usd=request.limits.max_cost_usd
                or self._deps.settings.default_max_cost_usd,
            )
        except DatabaseUnavailable:
            raise
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
        return _turn(replace(head, task_id=verdict.task_id), request, before)

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
