"""What a schedule does when it is due: the checks of a submission, then the task's row."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

from temporalio import activity
from uuid_utils.compat import uuid7

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.filing import screened_task
from observability.metrics import record_refusal, record_task
from store import schedules, tasks
from store.pricing import UnknownName, Unpriced, models_of, worst_case_usd
from store.refusals import Refusal
from workflows.contracts import FiledRequest, TaskRequest, Tenant
from workflows.errors import BudgetExceeded, ContentBlocked, Forbidden, KeyRefused, NotFound
from workflows.planning import headline, plan_task
from workflows.request_digest import digest_of_request
from workflows.schedule_contracts import Filed, Fire, StartedInput

__all__ = ["Schedules"]


class Schedules:
    """Files tasks that are due, once each, and notes what came of it."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    @activity.defn(name="schedules.file")
    @typed_failures
    async def file(self, fire: Fire) -> Filed:
        """File the task of one time, or find it filed; a refusal is noted with its code."""
        due = await schedules.due(self._deps.db, fire.organisation_id, fire.schedule_id)
        if due is None:
            return Filed(code=NotFound.code)
        if not due.key_stands:
            return await self._refuse(fire, KeyRefused.code, "the key was disabled or has expired")
        if "tasks" not in due.principal.scopes:
            return await self._refuse(fire, Forbidden.code, "the key lacks the scope `tasks`")
        request = TaskRequest.model_validate(due.resolved)
        catalogue = await self._deps.catalogue.read()
        try:
            models = models_of(catalogue, request.route, request.model)
            first_call = worst_case_usd(catalogue, models, due.first_max_tokens)
        except (UnknownName, Unpriced) as error:
            return await self._refuse(fire, NotFound.code, str(error))
        try:
            verdict, filed = await self._submit(fire, due, request, first_call)
        except ContentBlocked as error:
            return await self._refuse(fire, ContentBlocked.code, error.message)
        if isinstance(verdict, Refusal):
            record_refusal(verdict.code, verdict.scope)
            if verdict.code != "budget_exceeded":
                return await self._refuse(fire, KeyRefused.code, "the key is refused")
            said = f"the {verdict.scope}'s budget is too small for one call"
            return await self._refuse(fire, BudgetExceeded.code, said)
        if verdict.created:
            record_task("accepted")
        await self._note(fire, verdict.task_id)
        tenant = Tenant(
            organisation_id=fire.organisation_id,
            team_id=due.principal.team_id,
            key_id=due.principal.key_id,
        )
        task = plan_task(verdict.task_id, tenant, filed)
        return Filed(task=task, headline=headline(task)[:180])

    async def _submit(
        self, fire: Fire, due: schedules.Due, request: TaskRequest, first_call: Decimal
    ) -> tuple[tasks.Submitted | Refusal, TaskRequest]:
        """Screen the task and file it; screen it again if another policy holds by then.

        Raises:
            ContentBlocked: A rule of the policy blocks it.
        """
        task_id = uuid7()
        digest = self._deps.sealer.keyed(digest_of_request(request.model_dump(mode="json")))

        async def file() -> tuple[tasks.Submitted | Refusal, TaskRequest]:
            screened = await screened_task(self._deps, due.principal, task_id, request)
            verdict = await tasks.submit_task(
                self._deps.db,
                due.principal,
                task_id=task_id,
                # A caller's key holds no blank, so it is never one of these.
                idempotency_key=f"schedule {fire.schedule_id} {fire.fire}",
                request_digest=digest,
                input=screened.request.model_dump(mode="json"),
                user=request.user,
                tags=dict(request.tags),
                route=request.route,
                worst_case_usd=first_call,
                max_cost_usd=request.limits.max_cost_usd
                or self._deps.settings.default_max_cost_usd,
                screening=screened.filed,
            )
            return verdict, screened.request

        team = due.principal.team_id
        verdict, filed = await self._deps.screening.filed(fire.organisation_id, team, file)
        if isinstance(verdict, Refusal) or verdict.created:
            return verdict, filed
        # Filed by an attempt before: what is on file counts, its redactions too.
        row = await tasks.get_task(self._deps.db, fire.organisation_id, verdict.task_id)
        return verdict, FiledRequest.model_validate(row.input) if row else request

    @activity.defn(name="schedules.started")
    @typed_failures
    async def started(self, task: StartedInput) -> None:
        """Mark the task's row as started."""
        await tasks.mark_started(
            self._deps.db, task.tenant.organisation_id, task.task_id, task.run_id or ""
        )

    @activity.defn(name="schedules.ended")
    @typed_failures
    async def ended(self, task: StartedInput) -> bool:
        """Tell whether the task has ended."""
        row = await tasks.get_task(self._deps.db, task.tenant.organisation_id, task.task_id)
        return row is None or row.finished_at is not None

    async def _note(self, fire: Fire, task_id: UUID) -> None:
        await schedules.record_run(
            self._deps.db, fire.organisation_id, fire.schedule_id, fire.fire, task_id=task_id
        )

    async def _refuse(self, fire: Fire, code: str, detail: str) -> Filed:
        await schedules.record_run(
            self._deps.db,
            fire.organisation_id,
            fire.schedule_id,
            fire.fire,
            code=code,
            detail=detail,
        )
        return Filed(code=code)
