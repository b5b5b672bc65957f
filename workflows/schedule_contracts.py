"""What crosses the border when a schedule is due."""

from __future__ import annotations

from uuid import UUID

from workflows.contracts import TaskInput, Tenant, Wire

__all__ = ["Filed", "Fire", "ScheduledOutcome", "StartedInput", "scheduled_workflow_id"]

_PREFIX = "scheduled-"
_UUID_CHARS = 36


def scheduled_workflow_id(organisation_id: UUID, schedule_id: UUID) -> str:
    """Return the workflow id that Temporal puts the time behind."""
    return f"{_PREFIX}{organisation_id}-{schedule_id}"


class Fire(Wire):
    """One time of a schedule."""

    organisation_id: UUID
    schedule_id: UUID
    fire: str

    @classmethod
    def of(cls, workflow_id: str) -> Fire:
        """Read it off the id of the workflow that the schedule started.

        The workflow takes no input: Temporal would hold it encrypted for a workflow id that no
        run of it has, since every run's id carries its time.

        Raises:
            ValueError: It is not such an id.
        """
        organisation = workflow_id[len(_PREFIX) :][:_UUID_CHARS]
        rest = workflow_id[len(_PREFIX) + _UUID_CHARS + 1 :]
        return cls(
            organisation_id=UUID(organisation),
            schedule_id=UUID(rest[:_UUID_CHARS]),
            fire=rest[_UUID_CHARS + 1 :] or "once",
        )


class Filed(Wire):
    """The task that was filed, or why none was."""

    task: TaskInput | None = None
    headline: str = ""
    code: str | None = None


class StartedInput(Wire):
    """A task of a schedule whose workflow runs."""

    tenant: Tenant
    task_id: UUID
    run_id: str | None = None


class ScheduledOutcome(Wire):
    """What came of one time."""

    task_id: UUID | None = None
    code: str | None = None
