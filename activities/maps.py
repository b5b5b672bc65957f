"""The tasks of a map's inputs, filed some at a time, each once."""

from __future__ import annotations

from temporalio import activity

from activities.children import why_not
from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.filing import first_call_usd
from observability.metrics import record_refusal, record_task
from store import maps
from store.pricing import UnknownName, Unpriced
from store.refusals import Refusal
from workflows import transcript
from workflows.child_contracts import MapBatch, MapItem, NextInput
from workflows.contracts import FiledRequest, TaskError
from workflows.errors import BudgetExceeded, KeyRefused, NotFound
from workflows.planning import headline, plan_task

__all__ = ["Maps"]

# Any question will do where only what the inputs have in common is asked for.
_ANY = {"input": "?"}


class Maps:
    """Files what a map is to begin next."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    @activity.defn(name="maps.next")
    @typed_failures
    async def next(self, wanted: NextInput) -> MapBatch:
        """File the tasks of the next inputs, or find them filed; a refusal ends the map."""
        organisation = wanted.tenant.organisation_id
        read = await maps.map_request(self._deps.db, organisation, wanted.task_id)
        template = read.get("task", {})
        common = FiledRequest.model_validate({**template, **_ANY})
        try:
            worst_case = first_call_usd(await self._deps.catalogue.read(), common)
        except (UnknownName, Unpriced) as error:
            return MapBatch(refused=TaskError(code=NotFound.code, message=str(error)))
        filed = await maps.file_items(
            self._deps.db,
            organisation,
            wanted.task_id,
            after=wanted.after,
            most=wanted.most,
            worst_case_usd=worst_case,
            max_cost_usd=common.limits.max_cost_usd or self._deps.settings.default_max_cost_usd,
        )
        if isinstance(filed, Refusal):
            record_refusal(filed.code, filed.scope)
            code = BudgetExceeded if filed.code == "budget_exceeded" else KeyRefused
            return MapBatch(refused=TaskError(code=code.code, message=why_not(filed)))
        for _ in filed:
            record_task("accepted")
        task = plan_task(wanted.task_id, wanted.tenant, common)
        return MapBatch(
            plan=task.plan,
            headline=headline(task),
            items=tuple(_item(each, template) for each in filed),
        )


def _item(filed: maps.FiledItem, template: dict[str, object]) -> MapItem:
    request = FiledRequest.model_validate({**template, **filed.input})
    digest, chars = transcript.start(request.system, request.conversation())
    return MapItem(
        number=filed.number, task_id=filed.task_id, prompt_digest=digest, prompt_chars=chars
    )
