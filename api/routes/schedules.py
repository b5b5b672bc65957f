"""Schedules: a task that is asked again and again."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from uuid_utils.compat import uuid7

from api.authentication import Caller, parts_of
from api.json_body import json_body, request_body
from api.openapi import answers
from api.parts import Parts
from api.problems import ProblemError, not_found
from api.scheduling import Calendar, Timing
from api.submission import resolve
from store import schedules
from store.identity import Principal
from workflows import errors
from workflows.contracts import TaskRequest

__all__ = ["router"]

router = APIRouter(tags=["schedules"])

PartsOf = Annotated[Parts, Depends(parts_of)]

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"


class NewSchedule(Timing):
    """A schedule to make."""

    name: Annotated[str, StringConstraints(pattern=_NAME)] = Field(
        description="Name, unique in the organisation: letters, digits, `.`, `_`, `-`; at most "
        "128 characters."
    )
    task: TaskRequest = Field(
        description="What is asked each time. Names in it are looked up now: an agent, a "
        "collection and a tool stay what they are today."
    )
    paused: bool = Field(default=False, description="Whether it begins paused.")

    @property
    def timing(self) -> Timing:
        """The timing alone."""
        return Timing(**self.model_dump(include=set(Timing.model_fields)))


class ScheduleRun(BaseModel):
    """What came of one time."""

    model_config = ConfigDict(frozen=True)

    fire: str = Field(description="Which time, as Temporal names it.")
    at: datetime = Field(description="When it was worked on, RFC 3339 in UTC.")
    task_id: UUID | None = Field(description="The task; none when it was refused.")
    code: str | None = Field(description="Code of the refusal; none when there is a task.")
    detail: str | None = Field(description="The refusal in words.")


class ScheduleSummary(BaseModel):
    """A schedule."""

    model_config = ConfigDict(frozen=True)

    id: UUID = Field(description="Id of the schedule (UUIDv7).")
    name: str = Field(description="Its name.")
    key_id: UUID = Field(description="Key that made it, and pays for its tasks.")
    timing: Timing = Field(description="When it is due.")
    created_at: datetime = Field(description="When it was made, RFC 3339 in UTC.")


class ScheduleView(ScheduleSummary):
    """A schedule, and how it goes."""

    state: Literal["active", "paused", "incomplete"] = Field(
        description="`incomplete`: making or deleting it was interrupted; delete it."
    )
    task: TaskRequest = Field(description="What is asked each time.")
    next_at: tuple[datetime, ...] = Field(description="The next times, RFC 3339 in UTC.")
    skipped: int = Field(description="Times skipped because the last one's task still ran.", ge=0)
    runs: tuple[ScheduleRun, ...] = Field(description="The last 20 times, newest first.")


class ScheduleList(BaseModel):
    """The organisation's schedules."""

    model_config = ConfigDict(frozen=True)

    schedules: tuple[ScheduleSummary, ...] = Field(description="The schedules, by name.")


class Deleted(BaseModel):
    """A schedule that is no more."""

    model_config = ConfigDict(frozen=True)

    id: UUID = Field(description="Id it had.")


_EXAMPLE = {
    "name": "every-morning",
    "cron": "0 9 * * 1-5",
    "time_zone": "Europe/Berlin",
    "task": {"input": "What changed since yesterday?", "limits": {"max_cost_usd": "0.05"}},
}


@router.post(
    "/v1/schedules",
    status_code=201,
    responses=answers(404, 409, body=True),
    openapi_extra=request_body(NewSchedule, _EXAMPLE),
    summary="Make a schedule",
)
async def create_schedule(
    caller: Caller,
    parts: PartsOf,
    body: Annotated[NewSchedule, Depends(json_body(NewSchedule))],
    response: Response,
) -> ScheduleView:
    """Have a task asked at certain times, by this key and at its cost.

    Each time the checks of a submission are made anew: key, route, budgets. What they refuse is
    listed among the runs with its code.
    """
    resolved, first_max_tokens = await resolve(parts, caller, body.task)
    schedule_id = uuid7()
    added = await schedules.add_schedule(
        parts.database,
        caller,
        schedule_id=schedule_id,
        name=body.name,
        timing=body.timing.model_dump(mode="json"),
        request=body.task.model_dump(mode="json"),
        resolved=resolved.model_dump(mode="json"),
        first_max_tokens=first_max_tokens,
    )
    if not added:
        raise ProblemError(errors.Conflict, "There is a schedule of this name.")
    try:
        await _calendar(parts, caller).create(schedule_id, body.timing, paused=body.paused)
    except Exception:
        # Should this fail as well, the schedule is listed as incomplete and can be deleted.
        await schedules.delete_schedule(parts.database, caller.organisation_id, schedule_id)
        raise
    response.headers["Location"] = f"/v1/schedules/{schedule_id}"
    return await _view(parts, caller, await _find(parts, caller, schedule_id))


@router.get("/v1/schedules", responses=answers(), summary="List schedules")
async def list_schedules(caller: Caller, parts: PartsOf) -> ScheduleList:
    """List the organisation's schedules, by name."""
    found = await schedules.list_schedules(parts.database, caller.organisation_id)
    return ScheduleList(schedules=tuple(ScheduleSummary(**_facts(each)) for each in found))


@router.get("/v1/schedules/{schedule_id}", responses=answers(404), summary="Read a schedule")
async def get_schedule(caller: Caller, parts: PartsOf, schedule_id: UUID) -> ScheduleView:
    """Read a schedule: its next times, and what came of the last ones."""
    return await _view(parts, caller, await _find(parts, caller, schedule_id))


@router.post(
    "/v1/schedules/{schedule_id}/pause", responses=answers(404), summary="Pause a schedule"
)
async def pause_schedule(caller: Caller, parts: PartsOf, schedule_id: UUID) -> ScheduleView:
    """Have no more times come; tasks that run go on. Pausing twice is no error."""
    return await _set_paused(parts, caller, schedule_id, True)


@router.post(
    "/v1/schedules/{schedule_id}/resume", responses=answers(404), summary="Resume a schedule"
)
async def resume_schedule(caller: Caller, parts: PartsOf, schedule_id: UUID) -> ScheduleView:
    """Let times come again; those in between are not made up for."""
    return await _set_paused(parts, caller, schedule_id, False)


@router.post(
    "/v1/schedules/{schedule_id}/run", responses=answers(404), summary="Run a schedule now"
)
async def run_schedule(caller: Caller, parts: PartsOf, schedule_id: UUID) -> ScheduleView:
    """Have it due now, besides its times and under its overlap policy."""
    found = await _find(parts, caller, schedule_id)
    if not await _calendar(parts, caller).fire(schedule_id):
        raise not_found("schedule")
    return await _view(parts, caller, found)


@router.delete("/v1/schedules/{schedule_id}", responses=answers(404), summary="Delete a schedule")
async def delete_schedule(caller: Caller, parts: PartsOf, schedule_id: UUID) -> Deleted:
    """End a schedule. Its tasks stay, and those that run go on."""
    await _find(parts, caller, schedule_id)
    await _calendar(parts, caller).delete(schedule_id)
    await schedules.delete_schedule(parts.database, caller.organisation_id, schedule_id)
    return Deleted(id=schedule_id)


async def _set_paused(
    parts: Parts, caller: Principal, schedule_id: UUID, paused: bool
) -> ScheduleView:
    found = await _find(parts, caller, schedule_id)
    if not await _calendar(parts, caller).set_paused(schedule_id, paused):
        raise not_found("schedule")
    return await _view(parts, caller, found)


async def _find(parts: Parts, caller: Principal, schedule_id: UUID) -> schedules.Schedule:
    found = await schedules.get_schedule(parts.database, caller.organisation_id, schedule_id)
    if found is None:
        raise not_found("schedule")
    return found


def _calendar(parts: Parts, caller: Principal) -> Calendar:
    return Calendar(parts.temporal, parts.settings, caller)


def _facts(found: schedules.Schedule) -> dict[str, Any]:
    return {
        "id": found.schedule_id,
        "name": found.name,
        "key_id": found.key_id,
        "timing": Timing.model_validate(found.timing),
        "created_at": found.created_at,
    }


async def _view(parts: Parts, caller: Principal, found: schedules.Schedule) -> ScheduleView:
    told = await _calendar(parts, caller).describe(found.schedule_id)
    runs = await schedules.list_runs(parts.database, caller.organisation_id, found.schedule_id)
    state: Literal["active", "paused", "incomplete"] = "incomplete"
    if told is not None:
        state = "paused" if told.schedule.state.paused else "active"
    return ScheduleView(
        **_facts(found),
        state=state,
        task=TaskRequest.model_validate(found.request),
        next_at=tuple(told.info.next_action_times[:5]) if told and state == "active" else (),
        skipped=told.info.num_actions_skipped_overlap if told else 0,
        runs=tuple(
            ScheduleRun(
                fire=run.fire, at=run.at, task_id=run.task_id, code=run.code, detail=run.detail
            )
            for run in runs
        ),
    )
