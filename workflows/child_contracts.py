"""What crosses the border when a task starts tasks: sub-agents and maps."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal
from uuid import UUID

from pydantic import Field

from workflows.contracts import (
    Plan,
    TaskError,
    TaskInput,
    Tenant,
    ToolInput,
    ToolOutput,
    Usd,
    Wire,
)

__all__ = [
    "MAX_NESTING",
    "SUB_AGENT",
    "AskInput",
    "ChildFiled",
    "EndChildInput",
    "HearInput",
    "Heard",
    "MapBatch",
    "MapInput",
    "MapItem",
    "MapOutcome",
    "MapState",
    "NextInput",
    "is_sub_agent",
]

#: Tools of this registration are agents.
SUB_AGENT = "agent"
#: How many tasks may stand above one another.
MAX_NESTING = 8


def is_sub_agent(tool: str) -> bool:
    """Tell whether a tool is an agent."""
    return tool.startswith(f"{SUB_AGENT}.")


class AskInput(Wire):
    """File the task that a call of a sub-agent stands for."""

    call: ToolInput
    tokens_left: int | None = Field(
        default=None, description="What is left of the parent's limits.max_tokens."
    )
    seconds_left: int | None = Field(
        default=None, description="What is left of the parent's deadline."
    )
    priority: Literal["interactive", "default", "batch"] = Field(
        default="default", description="Whose turn it is at an engine is the parent's."
    )


class ChildFiled(Wire):
    """The task to start, or what came of the call without one."""

    task: TaskInput | None = None
    headline: str = ""
    output: ToolOutput | None = None


class HearInput(Wire):
    """A sub-agent's task has ended: tell the parent what it said."""

    call: ToolInput
    task_id: UUID


class Heard(Wire):
    """What a sub-agent answered, and what it and all below it took."""

    output: ToolOutput
    tokens: int = 0
    cost_usd: Usd = Decimal(0)


class EndChildInput(Wire):
    """End the row of a task whose workflow ended past its own end."""

    tenant: Tenant
    task_id: UUID


class MapState(Wire):
    """How far a map is: what a next run of the workflow goes on from."""

    cursor: int = Field(default=0, description="Number of the last input that was begun.")
    done: int = 0
    failed: int = 0
    paused: bool = False
    steering: int = 0
    started_at: float | None = None


class MapInput(Wire):
    """Input of `MapTask`. The inputs themselves are in the map's rows."""

    task_id: UUID
    tenant: Tenant
    total: int
    concurrency: int
    on_error: Literal["continue", "stop"] = "continue"
    deadline_seconds: int | None = None
    run_items: int = Field(
        default=500, description="Inputs begun in one run of the workflow, at most."
    )
    state: MapState | None = Field(
        default=None, description="Where to go on from; none is the beginning."
    )


class NextInput(Wire):
    """File the tasks of a map's next inputs."""

    tenant: Tenant
    task_id: UUID
    after: int
    most: int


class MapItem(Wire):
    """One input's task, filed: what differs from the others."""

    number: int
    task_id: UUID
    prompt_digest: str
    prompt_chars: int


class MapBatch(Wire):
    """Tasks to start: one plan for all of them, or why there can be no more."""

    plan: Plan | None = None
    headline: str = ""
    items: tuple[MapItem, ...] = ()
    refused: TaskError | None = None


class MapOutcome(Wire):
    """Result of `MapTask`."""

    task_id: UUID
    done: int
    failed: int
