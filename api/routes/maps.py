"""Maps: one task for each of many inputs. A map is a task itself: it is read and steered as one."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response

from api.authentication import Caller, parts_of
from api.json_body import json_body, request_body
from api.map_views import MapResult, MapResults
from api.mapping import MOST_INPUTS, MapRequest, submit_map
from api.openapi import answers
from api.parts import Parts
from api.problems import not_found
from api.restoring import redactions_for, restored, scope_for
from api.routes.tasks import IdempotencyKey
from api.task_projection import failure_view, links_of
from api.task_views import TaskAccepted
from store import maps, tasks
from workflows.contracts import TaskStatus

__all__ = ["router"]

router = APIRouter(tags=["maps"])

PartsOf = Annotated[Parts, Depends(parts_of)]

_EXAMPLE = {
    "inputs": ["What is 12*7?", "What is 12*8?"],
    "tools": [{"name": "calculator"}],
    "concurrency": 8,
    "whole": {"max_cost_usd": "1.00"},
}


@router.post(
    "/v1/maps",
    status_code=202,
    responses=answers(402, 404, 409, body=True),
    openapi_extra=request_body(MapRequest, _EXAMPLE),
    summary="Submit a map",
)
async def submit(
    caller: Caller,
    parts: PartsOf,
    body: Annotated[MapRequest, Depends(json_body(MapRequest))],
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> TaskAccepted:
    """Accept up to 10,000 inputs, each of which becomes a task; so many at a time and no more.

    The map is a task: `/v1/tasks/{task_id}` reads it, pauses it, cancels it and streams its events.
    """
    accepted = await submit_map(parts, caller, body, idempotency_key)
    status = TaskStatus.ACCEPTED
    if accepted.replayed:
        record = await tasks.get_task(parts.database, caller.organisation_id, accepted.task_id)
        status = TaskStatus(record.status) if record is not None else status
        response.headers["Idempotent-Replayed"] = "true"
    response.headers["Location"] = f"/v1/tasks/{accepted.task_id}"
    return TaskAccepted(
        id=accepted.task_id,
        status=status,
        replayed=accepted.replayed,
        links=links_of(parts.settings, accepted.task_id),
    )


@router.get("/v1/maps/{map_id}/results", responses=answers(404), summary="Read a map's results")
async def list_results(
    caller: Caller,
    parts: PartsOf,
    map_id: UUID,
    limit: Annotated[int, Query(ge=1, le=1000, description="Results on a page, at most.")] = 200,
    cursor: Annotated[
        int, Query(ge=0, le=MOST_INPUTS, description="`next_cursor` of the page before.")
    ] = 0,
) -> MapResults:
    """Read what came of the inputs, in their order, also while the map runs."""
    record = await tasks.get_task(parts.database, caller.organisation_id, map_id)
    if record is None or record.kind != "map":
        raise not_found("map")
    found = await maps.map_results(
        parts.database, caller.organisation_id, map_id, after=cursor, limit=limit + 1
    )
    redactions = await redactions_for(
        parts.screening,
        caller.organisation_id,
        scope_for(caller, record.team_id, record.input),
        [each.answer for each in found],
    )
    as_json = record.input["task"].get("output_schema") is not None
    return MapResults(
        map_id=map_id,
        results=tuple(
            MapResult(
                number=each.number,
                task_id=each.task_id,
                status=each.status,
                answer=restored(each.answer, redactions, as_json=as_json),
                error=None if each.error is None else failure_view(each.error),
                cost_usd=each.billed_usd,
            )
            for each in found[:limit]
        ),
        next_cursor=found[limit - 1].number if len(found) > limit else None,
    )
