"""Batches: many requests in one file, answered into another."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import JSONResponse, Response

from api.authentication import Caller, origin_of, parts_of
from api.batching import cancel_batch, submit_batch
from api.json_body import BODY_MODELS, request_body
from api.openai.batches import BatchRequest, batch_id_of, batch_object, read_batch
from api.openai.errors import OpenAIError
from api.openai.pages import page_of
from api.openapi import openai_answers
from api.parts import Parts
from store import batches
from store.batches import Batch, OnBudget
from store.identity import Principal

__all__ = ["router"]

router = APIRouter(tags=["openai"])
BODY_MODELS[BatchRequest.__name__] = BatchRequest

PartsOf = Annotated[Parts, Depends(parts_of)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="The same key of the same API key returns the first batch.",
    ),
]
OnBudgetHeader = Annotated[
    OnBudget,
    Header(
        alias="X-Overline-On-Budget",
        description="What becomes of a line that no budget has room for: it fails, or waits.",
    ),
]
_EXAMPLE = {
    "input_file_id": "file-0199a2b0c1d27e5f8a9b0c1d2e3f4a5b",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}


@router.post(
    "/v1/batches",
    responses=openai_answers(body=True, repeats=True),
    summary="Submit a batch",
    openapi_extra=request_body(BatchRequest, _EXAMPLE),
)
async def create_batch(
    request: Request,
    caller: Caller,
    parts: PartsOf,
    idempotency_key: IdempotencyKey = None,
    on_budget: OnBudgetHeader = "fail",
) -> Response:
    """Have every line of a file answered, at batch priority, within a time.

    Each line is a call of its own, metered, budgeted and limited as if it had been sent by itself;
    none is made twice, whatever dies meanwhile.
    """
    document: Any = request.scope["state"].get("document")
    asked = read_batch(document)
    batch = await submit_batch(
        parts,
        caller,
        asked,
        document,
        origin=origin_of(request),
        idempotency_key=idempotency_key,
        on_budget=on_budget,
    )
    return JSONResponse(batch_object(batch))


@router.get("/v1/batches", responses=openai_answers(), summary="List batches")
async def list_batches(
    caller: Caller,
    parts: PartsOf,
    limit: Annotated[int, Query(ge=1, le=100, description="At most so many.")] = 20,
    after: Annotated[str | None, Query(max_length=64, description="Id of a batch.")] = None,
) -> Response:
    """List the organisation's batches, newest first."""
    beyond = None if after is None else batch_id_of(after)
    if after is not None and beyond is None:
        raise OpenAIError(400, "'after' is no batch's id.", code="invalid_value", param="after")
    page = await batches.list_batches(
        parts.database, caller.organisation_id, limit=limit, after=beyond
    )
    return JSONResponse(page_of([batch_object(batch) for batch in page.batches], more=page.more))


@router.get("/v1/batches/{batch_id}", responses=openai_answers(404), summary="Read a batch")
async def get_batch(batch_id: str, caller: Caller, parts: PartsOf) -> Response:
    """Read how far it is; once it has ended, which files say what came of it."""
    return JSONResponse(batch_object(await _found(parts, caller, _id(batch_id))))


@router.post(
    "/v1/batches/{batch_id}/cancel", responses=openai_answers(404, 409), summary="Cancel a batch"
)
async def post_cancel_batch(batch_id: str, caller: Caller, parts: PartsOf) -> Response:
    """Have it begin nothing more; what is being made is made to its end, and all is kept."""
    wanted = _id(batch_id)
    batch = await _found(parts, caller, wanted)
    if not await cancel_batch(parts, caller.organisation_id, wanted) and batch.status not in (
        "cancelling",
        "cancelled",
    ):
        batch = await _found(parts, caller, wanted)
        raise OpenAIError(
            409,
            f"The batch is {batch.status}: there is nothing left to cancel.",
            code="batch_not_cancellable",
            headers={"x-should-retry": "false"},
        )
    return JSONResponse(batch_object(await _found(parts, caller, wanted)))


def _id(text: str) -> UUID:
    wanted = batch_id_of(text)
    if wanted is None:
        raise _missing()
    return wanted


async def _found(parts: Parts, caller: Principal, batch_id: UUID) -> Batch:
    found = await batches.get_batch(parts.database, caller.organisation_id, batch_id)
    if found is None:
        raise _missing()
    return found


def _missing() -> OpenAIError:
    return OpenAIError(404, "There is no such batch.", code="not_found", param="id")
