"""Whether the service works, for load balancers, orchestrators and Prometheus."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from api.authentication import parts_of
from api.openapi import answers
from api.parts import Parts
from api.problems import Part, unavailable
from observability.metrics import render

__all__ = ["router"]

router = APIRouter(tags=["health"])

_ORDER: tuple[Part, ...] = ("database", "temporal", "triton")


class Health(BaseModel):
    """The process runs."""

    model_config = ConfigDict(frozen=True)

    status: Literal["ok"] = Field(description="Always `ok`: an answer at all is the news.")


class Readiness(BaseModel):
    """Every part behind the API answers."""

    model_config = ConfigDict(frozen=True)

    status: Literal["ready"] = Field(description="Always `ready`; otherwise the answer is a 503.")
    parts: dict[str, str] = Field(
        description="State of every part (`database`, `temporal`, `triton`), in words."
    )


@router.get("/healthz", responses=answers(key=False), summary="Is the process alive?")
async def healthz() -> Health:
    """Answer as long as the process runs; looks at nothing behind it."""
    return Health(status="ok")


@router.get("/readyz", responses=answers(key=False), summary="Can it do its work?")
async def readyz(parts: Annotated[Parts, Depends(parts_of)]) -> Readiness:
    """Tell whether every part answered when it was last looked at, at most 3 s ago.

    A part that is down makes this a 503 whose `part` names the first one and whose `parts` has
    them all. Tasks that were accepted before go on as soon as it is back.
    """
    words = {part: parts.states[part].detail for part in _ORDER}
    for part in _ORDER:
        if not parts.states[part].ready:
            refusal = unavailable(part)
            refusal.members["parts"] = words
            raise refusal
    return Readiness(status="ready", parts=dict(words))


@router.get(
    "/metrics",
    response_class=Response,
    responses=answers(key=False)
    | {
        200: {
            "description": "The metrics.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    },
    summary="Prometheus metrics of this process",
)
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text form. They hold no tenant's names."""
    body, content_type = render(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type})
