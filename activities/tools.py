"""The tools an agent can call. A tool that cannot answer says why, for the model to read."""

from __future__ import annotations

from typing import Any

from temporalio import activity

from activities.builtin import calculator
from activities.calculator import CalculationError
from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.passages import Passages
from activities.tool_drafts import Answer
from activities.tool_results import ToolResults, cut
from store import approvals, retrieval
from workflows.contracts import ApprovalInput, Decided, ReleaseInput, ToolInput, ToolOutput
from workflows.tool_calls import arguments_digest

__all__ = ["Tools"]

SEARCH_RESULTS = 3
# A passage of a result is read by a model with a small window.
RESULT_CHARS = 2_000


class Tools:
    """Built-in tools, and the question to people about calls of any tool."""

    def __init__(self, deps: Dependencies, passages: Passages) -> None:
        self._deps = deps
        self._passages = passages
        self._results = ToolResults(deps)

    @activity.defn(name="tools.calculator")
    @typed_failures
    async def calculator(self, call: ToolInput) -> ToolOutput:
        """Compute an arithmetic expression."""

        async def run(arguments: dict[str, Any]) -> Answer:
            try:
                return Answer(calculator(expression=str(arguments.get("expression", ""))))
            except CalculationError as error:
                return Answer(str(error), ok=False)

        return await self._results.of(call, run)

    @activity.defn(name="tools.search")
    @typed_failures
    async def search(self, call: ToolInput) -> ToolOutput:
        """Find passages in the task's collections."""

        async def run(arguments: dict[str, Any]) -> Answer:
            if not call.collections:
                return Answer("there are no documents to search", ok=False)
            hits = await self._passages.search(
                call.tenant.organisation_id,
                call.collections,
                str(arguments.get("query", "")),
                SEARCH_RESULTS,
            )
            if not hits:
                return Answer("nothing was found")
            share = RESULT_CHARS // len(hits)
            return Answer("\n\n".join(f"{hit.title}: {cut(hit.text, share)}" for hit in hits))

        untrusted = await retrieval.any_untrusted(
            self._deps.db, call.tenant.organisation_id, call.collections
        )
        return await self._results.of(call, run, untrusted=untrusted)

    @activity.defn(name="approvals.request")
    @typed_failures
    async def request_approval(self, call: ApprovalInput) -> Decided:
        """Ask people whether a call may be made, or a task may begin; they may have said so."""
        await approvals.request_approval(
            self._deps.db,
            call.tenant.organisation_id,
            call.task_id,
            step=call.step,
            call_id=call.call_id,
            tool=call.tool_call.name,
            arguments=dict(call.tool_call.arguments),
            arguments_digest=arguments_digest(call.tool_call.arguments),
        )
        return await self._decided(call)

    @activity.defn(name="approvals.decided")
    @typed_failures
    async def decided(self, call: ApprovalInput) -> Decided:
        """Look what people decided about a task."""
        return await self._decided(call)

    async def _decided(self, call: ApprovalInput) -> Decided:
        asked = await approvals.get(
            self._deps.db, call.tenant.organisation_id, call.task_id, call.call_id
        )
        return Decided() if asked is None else Decided(decision=asked.decision, reason=asked.reason)

    @activity.defn(name="tools.release")
    @typed_failures
    async def release(self, wanted: ReleaseInput) -> ToolOutput:
        """Tell the model an answer that a rule holds back, once a person allows it."""
        return await self._results.release(wanted)
