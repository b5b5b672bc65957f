"""The tools an agent can call. A tool that cannot answer says why, for the model to read."""

from __future__ import annotations

from datetime import UTC, datetime

from temporalio import activity

from activities.calculator import CalculationError, calculate
from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.passages import Passages
from store import tools
from workflows.contracts import ToolInput, ToolOutput
from workflows.transcript import digest_of

__all__ = ["Tools"]

SEARCH_RESULTS = 3
# A result is read by a model with a small window; more is cut, and said so.
RESULT_CHARS = 2_000
PREVIEW_CHARS = 200


class Tools:
    """Each tool is an activity; its result is on the step's row, its digest in the history."""

    def __init__(self, deps: Dependencies, passages: Passages) -> None:
        self._deps = deps
        self._passages = passages

    @activity.defn(name="tools.calculator")
    @typed_failures
    async def calculator(self, call: ToolInput) -> ToolOutput:
        """Compute an arithmetic expression."""
        began = datetime.now(UTC)
        expression = call.tool_call.arguments.get("expression", "")
        try:
            return await self._record(call, f"{expression} = {calculate(expression)}", began)
        except CalculationError as error:
            return await self._record(call, str(error), began, ok=False)

    @activity.defn(name="tools.search")
    @typed_failures
    async def search(self, call: ToolInput) -> ToolOutput:
        """Find passages in the task's collections."""
        began = datetime.now(UTC)
        if not call.collections:
            return await self._record(call, "there are no documents to search", began, ok=False)
        hits = await self._passages.search(
            call.tenant.organisation_id,
            call.collections,
            call.tool_call.arguments.get("query", ""),
            SEARCH_RESULTS,
        )
        if not hits:
            return await self._record(call, "nothing was found", began)
        share = RESULT_CHARS // len(hits)
        return await self._record(
            call, "\n\n".join(f"{hit.title}: {_cut(hit.text, share)}" for hit in hits), began
        )

    async def _record(
        self, call: ToolInput, text: str, began: datetime, *, ok: bool = True
    ) -> ToolOutput:
        await tools.record_tool_call(
            self._deps.db,
            organisation_id=call.tenant.organisation_id,
            task_id=call.task_id,
            step=call.step,
            call_id=call.call_id,
            name=call.tool_call.name,
            attempt=activity.info().attempt,
            arguments=dict(call.tool_call.arguments),
            result_text=text,
            ok=ok,
            error=None if ok else text,
            started_at=began,
            ended_at=datetime.now(UTC),
        )
        return ToolOutput(
            ok=ok, digest=digest_of(text), chars=len(text), preview=_cut(text, PREVIEW_CHARS)
        )


def _cut(text: str, limit: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 2] + " …"
