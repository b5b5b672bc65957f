"""How what came of a map's inputs looks to callers."""

from __future__ import annotations

from uuid import UUID

from pydantic import Field

from api.task_views import Failure, Usd, View

__all__ = ["MapResult", "MapResults"]


class MapResult(View):
    """What came of one input."""

    number: int = Field(description="Place of the input in the request, from 1.", ge=1)
    task_id: UUID | None = Field(description="Its task; none: not begun.")
    status: str = Field(
        description="`waiting`, `running`, `succeeded`, `failed`, `cancelled` or `skipped`."
    )
    answer: str | None = Field(description="The answer, once it succeeded.")
    error: Failure | None = Field(description="Why it did not succeed.")
    cost_usd: Usd = Field(description="Billed for it and its sub-agents, in USD.")


class MapResults(View):
    """A page of a map's results, in the order of the inputs."""

    map_id: UUID = Field(description="The map.")
    results: tuple[MapResult, ...] = Field(description="The results.")
    next_cursor: int | None = Field(
        description="`cursor` of the next page; none: this is the last."
    )
