"""Schedules in Temporal: made, read, paused, fired and deleted; each of one organisation."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleDescription,
    ScheduleHandle,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
)
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from api.orchestrator import answering
from api.problems import invalid
from settings import Settings
from store.identity import Principal
from workflows.client import SEARCH_ORGANISATION, SEARCH_TEAM
from workflows.schedule_contracts import scheduled_workflow_id

__all__ = ["Calendar", "Timing"]

_DEADLINE = timedelta(seconds=5)
# A worker or Temporal that was away this long catches up; older times are dropped.
_CATCH_UP = timedelta(minutes=10)

_OVERLAPS = {
    "skip": ScheduleOverlapPolicy.SKIP,
    "buffer_one": ScheduleOverlapPolicy.BUFFER_ONE,
    "allow": ScheduleOverlapPolicy.ALLOW_ALL,
}


class Timing(BaseModel):
    """When a schedule is due. Give `cron` or `interval_seconds`, not both."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cron: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = Field(
        default=None, description="Five fields, such as `0 9 * * 1-5`, or `@daily`."
    )
    interval_seconds: int | None = Field(
        default=None, ge=10, le=366 * 86_400, description="Every so many seconds, from 10 on."
    )
    time_zone: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(
        default="UTC", description="IANA time zone in which `cron` is meant."
    )
    overlap: Literal["skip", "buffer_one", "allow"] = Field(
        default="skip",
        description="When the last time's task still runs: `skip` this time, start one afterwards "
        "(`buffer_one`), or start it beside (`allow`).",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Timing:
        if (self.cron is None) == (self.interval_seconds is None):
            raise ValueError("give either cron or interval_seconds")
        return self


class Calendar:
    """Temporal's schedules, as one organisation sees them.

    Args:
        client: Temporal.
        settings: Settings of the process.
        owner: Whose schedules.
    """

    def __init__(self, client: Client, settings: Settings, owner: Principal) -> None:
        self._client = client
        self._settings = settings
        self._owner = owner

    async def create(self, schedule_id: UUID, timing: Timing, *, paused: bool) -> None:
        """Make a schedule, or find it made.

        Raises:
            ProblemError: Temporal cannot read the timing (422), or does not answer (503).
        """
        spec = ScheduleSpec(time_zone_name=timing.time_zone)
        if timing.cron is not None:
            spec.cron_expressions = [timing.cron]
        elif timing.interval_seconds is not None:
            spec.intervals = [ScheduleIntervalSpec(timedelta(seconds=timing.interval_seconds))]
        attributes = TypedSearchAttributes(
            [
                SearchAttributePair(SEARCH_ORGANISATION, str(self._owner.organisation_id)),
                SearchAttributePair(SEARCH_TEAM, str(self._owner.team_id)),
            ]
        )
        schedule = Schedule(
            action=ScheduleActionStartWorkflow(
                "ScheduledTask",
                id=scheduled_workflow_id(self._owner.organisation_id, schedule_id),
                task_queue=self._settings.task_queue,
                typed_search_attributes=attributes,
            ),
            spec=spec,
            policy=SchedulePolicy(overlap=_OVERLAPS[timing.overlap], catchup_window=_CATCH_UP),
            state=ScheduleState(paused=paused),
        )
        async with answering():
            try:
                await self._client.create_schedule(
                    self._name(schedule_id),
                    schedule,
                    search_attributes=attributes,
                    rpc_timeout=_DEADLINE,
                )
            except ScheduleAlreadyRunningError:
                return
            except RPCError as exc:
                if exc.status is not RPCStatusCode.INVALID_ARGUMENT:
                    raise
                where = "/cron" if timing.cron is not None else "/interval_seconds"
                raise invalid(
                    where, "unreadable", "Neither the timing nor the time zone may be unknown."
                ) from None

    async def describe(self, schedule_id: UUID) -> ScheduleDescription | None:
        """Return what Temporal knows of it; None when that is nothing."""
        async with answering():
            try:
                return await self._handle(schedule_id).describe(rpc_timeout=_DEADLINE)
            except RPCError as exc:
                if exc.status is RPCStatusCode.NOT_FOUND:
                    return None
                raise

    async def set_paused(self, schedule_id: UUID, paused: bool) -> bool:
        """Pause it or let it go on; False when Temporal does not know it."""
        handle = self._handle(schedule_id)
        change: Any = handle.pause if paused else handle.unpause
        return await self._found(change(rpc_timeout=_DEADLINE))

    async def fire(self, schedule_id: UUID) -> bool:
        """Have it due now, under its overlap policy; False when Temporal does not know it."""
        return await self._found(self._handle(schedule_id).trigger(rpc_timeout=_DEADLINE))

    async def delete(self, schedule_id: UUID) -> None:
        """End it; one that is gone is no error."""
        await self._found(self._handle(schedule_id).delete(rpc_timeout=_DEADLINE))

    async def _found(self, call: Any) -> bool:
        async with answering():
            try:
                await call
            except RPCError as exc:
                if exc.status is RPCStatusCode.NOT_FOUND:
                    return False
                raise
        return True

    def _handle(self, schedule_id: UUID) -> ScheduleHandle:
        return self._client.get_schedule_handle(self._name(schedule_id))

    def _name(self, schedule_id: UUID) -> str:
        return f"schedule-{self._owner.organisation_id}-{schedule_id}"
