"""Agents as tools: the task that a call stands for, filed once, and its answer told once."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from temporalio import activity
from uuid_utils.compat import uuid7

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.filing import first_call_usd
from activities.screening import screened_of, screened_texts
from activities.tool_drafts import Answer
from activities.tool_results import Allowed, ToolResults
from inference.json_schema import first_problem
from observability.metrics import record_refusal, record_task
from store import children, tasks, tool_registry
from store.errors import NotFound as NoSuchRow
from store.identity import Principal
from store.pricing import UnknownName, Unpriced
from store.refusals import Refusal
from workflows.child_contracts import AskInput, ChildFiled, EndChildInput, Heard, HearInput
from workflows.contracts import FiledRequest, Safety, TaskError, Tenant, ToolOutput
from workflows.errors import EndedOutside
from workflows.planning import headline, plan_task
from workflows.request_digest import digest_of_request

__all__ = ["Children", "child_request", "why_not"]

# A sub-agent is not asked what a person would have to be asked about first: its parent may be.
_NOT_ASKED = ("block", "require_approval")


def child_request(template: dict[str, Any], asked: AskInput, question: str) -> FiledRequest:
    """Return what a sub-agent is asked, within what its parent has left, by its parent's policy."""
    safety = asked.call.safety
    request = FiledRequest.model_validate({**template, "input": question})
    if safety is not None:
        request = request.model_copy(update={"safety": _of_child(safety)})
    limits = request.limits.model_copy(
        update={
            "max_tokens": _least(request.limits.max_tokens, asked.tokens_left),
            "deadline_seconds": _least(request.limits.deadline_seconds, asked.seconds_left),
        }
    )
    return request.model_copy(update={"limits": limits, "priority": asked.priority})


def _least(one: int | None, other: int | None) -> int | None:
    known = [each for each in (one, other) if each is not None]
    return min(known, default=None)


def why_not(refusal: Refusal) -> str:
    """Say why a child could not be filed."""
    if refusal.code == "budget_exceeded":
        return (
            f"one call may cost up to ${refusal.needed_usd:f}, but of the {refusal.scope}'s budget "
            f"of ${refusal.limit_usd:f} ${refusal.spent_usd:f} is spent"
        )
    if refusal.code == "too_deep":
        return "tasks are nested too deep"
    thing, _, state = refusal.code.partition("_")
    return f"the {thing} is {state}"


class Children:
    """Files the tasks of sub-agents and hears what they say."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        self._results = ToolResults(deps)

    @activity.defn(name="children.ask")
    @typed_failures
    async def ask(self, asked: AskInput) -> ChildFiled:
        """File the task that a call stands for, or find it filed."""
        call, began = asked.call, datetime.now(UTC)
        allowed = await self._results.allowed(call)
        if isinstance(allowed, ToolOutput):
            return ChildFiled(output=allowed)
        filed = await self._file(asked, allowed)
        if isinstance(filed, str):
            refusal = Answer(f"the sub-agent was not asked: {filed}", ok=False)
            return ChildFiled(output=await self._results.record(call, allowed, refusal, began))
        return filed

    @activity.defn(name="children.hear")
    @typed_failures
    async def hear(self, ended: HearInput) -> Heard:
        """Tell the parent what its child answered, or why it did not, and what it took."""
        call = ended.call
        organisation = call.tenant.organisation_id
        child = await self._row(organisation, ended.task_id)
        _, tree = await children.below(
            self._deps.db, organisation, child.task_id, child.root_task_id, limit=0
        )
        allowed = await self._results.allowed(call)
        if isinstance(allowed, Allowed):
            allowed = await self._results.record(call, allowed, _said(child), child.created_at)
        return Heard(output=allowed, tokens=tree.tokens, cost_usd=tree.billed_usd)

    @activity.defn(name="children.end")
    @typed_failures
    async def end(self, task: EndChildInput) -> None:
        """End the row of a child whose workflow was ended from outside."""
        error = TaskError(code=EndedOutside.code, message="the workflow was ended from outside")
        await tasks.finish_task(
            self._deps.db,
            task.tenant.organisation_id,
            task.task_id,
            status="failed",
            error=error.model_dump(mode="json"),
        )

    @activity.defn(name="children.ended_as")
    @typed_failures
    async def ended_as(self, task: EndChildInput) -> str:
        """Tell how a task has ended; nothing while it runs."""
        row = await self._row(task.tenant.organisation_id, task.task_id)
        return "" if row.finished_at is None else row.status

    async def _file(self, asked: AskInput, allowed: Allowed) -> ChildFiled | str:
        call = asked.call
        organisation, name = call.tenant.organisation_id, call.tool_call.name
        tool = await tool_registry.definition(
            self._deps.db, organisation, name, call.definition or ""
        )
        if tool is None:
            return "there is no such agent"
        problem = first_problem(json.dumps(tool.input_schema), allowed.arguments)
        if problem is not None:
            return f"the arguments do not fit: {problem}"
        question = str(allowed.arguments["input"])
        verdict = await screened_texts(
            self._deps, call, call.safety, "input", [question], call.call_id
        )
        if verdict is not None:
            screened = screened_of(call.safety, verdict)
            if screened is not None and screened.rule and screened.outcome in _NOT_ASKED:
                return f"rule {screened.rule!r} blocks the question"
            question = verdict.texts[0]
        request = child_request(tool.target["request"], asked, question)
        try:
            worst_case = first_call_usd(await self._deps.catalogue.read(), request)
        except (UnknownName, Unpriced) as error:
            return str(error)
        parent = await self._row(organisation, call.task_id)
        stored = _stored(request)
        filed_child = await children.file_child(
            self._deps.db,
            _payer(call.tenant),
            task_id=uuid7(),
            # A caller's key holds no blank, so it is never one of these.
            idempotency_key=f"call {call.call_id}",
            request_digest=self._deps.sealer.keyed(digest_of_request(stored)),
            input=stored,
            user=parent.user,
            tags=parent.tags,
            route=request.route,
            worst_case_usd=worst_case,
            max_cost_usd=request.limits.max_cost_usd or self._deps.settings.default_max_cost_usd,
            parent_task_id=call.task_id,
            parent_step=call.step,
            call_id=call.call_id,
        )
        if isinstance(filed_child, Refusal):
            record_refusal(filed_child.code, filed_child.scope)
            return why_not(filed_child)
        if filed_child.created:
            record_task("accepted")
        else:
            # What is on file counts: a step that is taken anew may have less time left.
            filed = await self._row(organisation, filed_child.task_id)
            request = FiledRequest.model_validate(filed.input)
        task = plan_task(filed_child.task_id, call.tenant, request)
        return ChildFiled(task=task, headline=f"{name}: {headline(task)}"[:180])

    async def _row(self, organisation_id: UUID, task_id: UUID) -> tasks.Task:
        row = await tasks.get_task(self._deps.db, organisation_id, task_id)
        if row is None:
            raise NoSuchRow("no such task")
        return row


def _of_child(safety: Safety) -> Safety:
    """Whether the tree may begin was asked for its root."""
    return safety.model_copy(update={"asks": None, "judges": False})


def _stored(request: FiledRequest) -> dict[str, Any]:
    """Return a request as it is filed; one without a policy says nothing of any."""
    return request.model_dump(mode="json", exclude={"safety"} if request.safety is None else None)


def _payer(tenant: Tenant) -> Principal:
    return Principal(tenant.organisation_id, tenant.team_id, tenant.key_id, ())


def _said(child: tasks.Task) -> Answer:
    if child.status == "succeeded":
        return Answer(child.answer or "")
    if child.status == "cancelled":
        return Answer("the sub-agent was cancelled", ok=False)
    error = child.error or {}
    return Answer(
        f"the sub-agent failed: {error.get('message') or 'no reason is known'}"
        f" ({error.get('code') or EndedOutside.code})",
        ok=False,
    )
