"""How tasks, steps and events look to callers: every field described, with its unit."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from workflows.contracts import TaskStatus

__all__ = [
    "Cancellation",
    "ChildView",
    "ChosenCallView",
    "Failure",
    "ForkView",
    "MapProgress",
    "ModelCallView",
    "StepList",
    "StepView",
    "StreamEvent",
    "TaskAccepted",
    "TaskLinks",
    "TaskPage",
    "TaskSummary",
    "TaskView",
    "ToolCallView",
    "ToolChoice",
    "TreeView",
    "TurnLink",
    "Usd",
]

#: An amount as a decimal string without exponent: JSON numbers are binary floats to most readers.
Usd = Annotated[Decimal, PlainSerializer(lambda amount: f"{amount:f}", return_type=str)]


class View(BaseModel):
    """Base of what the API answers."""

    model_config = ConfigDict(frozen=True)


class TaskLinks(View):
    """Where else the task can be read."""

    task: str = Field(description="Path of the task.")
    steps: str = Field(description="Path of its steps.")
    events: str = Field(description="Path of its event stream.")
    web_ui: str = Field(description="URL of its workflow in Temporal's Web UI.")


class TaskAccepted(View):
    """A task that will run, whatever happens to this connection or process."""

    id: UUID = Field(description="Id of the task (UUIDv7).")
    status: TaskStatus = Field(description="State of the task at this moment.")
    replayed: bool = Field(
        description="Whether an earlier request with the same `Idempotency-Key` made it."
    )
    links: TaskLinks = Field(description="Where to read on.")


class TurnLink(View):
    """The session a task is of; a fork of a turn knows the same, and is none of its turns."""

    id: UUID = Field(description="The session.")
    number: int = Field(description="Number of the message it answers.", ge=1)


class SpentBudget(View):
    """The budget that a task waits for, as it stood when the task paused."""

    id: UUID | None = Field(description="Id of the budget, as under `/v1/budgets`.")
    scope: str = Field(description="What kind of subject has it.")
    subject: str | None = Field(description="Who.")
    window: str | None = Field(description="The period, such as `2026-12`, or `total`.")
    limit_usd: Usd | None = Field(description="Its limit, in USD.")
    spent_usd: Usd | None = Field(description="Charged, in USD.")
    held_usd: Usd | None = Field(description="Reserved by calls in flight, in USD.")
    needed_usd: Usd = Field(description="What the next call may cost, in USD.")


class PauseReason(View):
    """Why a task is paused."""

    reason: Literal["asked", "budget_exhausted"] = Field(
        description="`asked`: somebody paused it, and `resume` lets it go on. `budget_exhausted`: "
        "it goes on by itself when the budget is raised or its next period begins."
    )
    budget: SpentBudget | None = Field(default=None, description="The budget, if it waits for one.")


class TaskSummary(View):
    """A task in a list."""

    id: UUID = Field(description="Id of the task (UUIDv7).")
    kind: Literal["agent", "map", "call"] = Field(
        description="An agent's task, a map over inputs, or a call of the OpenAI-compatible routes."
    )
    parent_task_id: UUID | None = Field(description="The task that started it; none: a caller.")
    status: TaskStatus = Field(description="State of the task.")
    agent: str | None = Field(description="Agent it is one of, as `name@version`.")
    route: str = Field(description="Route that was asked for.")
    user: str | None = Field(description="End user the spend is attributed to.")
    tags: dict[str, str] = Field(description="Free tags for attribution.")
    created_at: datetime = Field(description="When it was accepted, RFC 3339 in UTC.")
    finished_at: datetime | None = Field(description="When it ended, RFC 3339 in UTC.")
    paused_at: datetime | None = Field(
        description="Since when it is to pause, RFC 3339 in UTC; the step that runs is finished."
    )
    pause_reason: PauseReason | None = Field(description="Why it is paused, if it is.")
    steps: int = Field(description="Steps begun so far, inherited ones too.", ge=0)
    cost_usd: Usd = Field(description="Billed so far, in USD.")
    preview: str = Field(description="First 80 characters of what was asked.")


class Failure(View):
    """Why a task did not succeed."""

    code: str = Field(description="Stable code to branch on; docs/errors.md.")
    message: str = Field(description="What went wrong, in words.")
    step: int | None = Field(default=None, description="Number of the step it went wrong in.")
    layer: str | None = Field(default=None, description="Layer it went wrong in.")


class ToolChoice(View):
    """A tool the model chose."""

    name: str = Field(description="The tool.")
    arguments: dict[str, Any] = Field(description="Its arguments, as its schema has them.")


class ForkView(View):
    """A link between a task and the one that was forked from it."""

    id: UUID = Field(description="The task at the other end of the link.")
    from_step: int = Field(description="First step that was run anew.", ge=1)
    changed: tuple[str, ...] = Field(description="Fields of the fork request that were given.")
    created_at: datetime = Field(description="When it was forked, RFC 3339 in UTC.")


class ChildView(View):
    """A task that another one started: a sub-agent, or an input of a map."""

    id: UUID = Field(description="The child.")
    agent: str | None = Field(description="Agent it is one of, as `name@version`.")
    step: int | None = Field(description="Step of the parent that asked it; none: of a map.")
    status: TaskStatus = Field(description="State of the child.")
    cost_usd: Usd = Field(description="Billed for its own calls, in USD.")


class TreeView(View):
    """A task and everything below it, added up."""

    tasks: int = Field(description="How many tasks that are, this one included.", ge=1)
    tokens: int = Field(description="Tokens billed, prompts and answers, in tokens.", ge=0)
    cost_usd: Usd = Field(description="Billed, in USD.")
    waste_usd: Usd = Field(description="Cost of tokens made and thrown away, in USD.")
    saved_usd: Usd = Field(description="What answers from the cache would have cost, in USD.")


class MapProgress(View):
    """How many inputs of a map are in which state."""

    total: int = Field(description="Inputs of the map.", ge=0)
    waiting: int = Field(description="Inputs not begun yet.", ge=0)
    running: int = Field(description="Inputs being worked on.", ge=0)
    done: int = Field(description="Inputs answered.", ge=0)
    failed: int = Field(description="Inputs that failed or were cancelled.", ge=0)
    skipped: int = Field(description="Inputs never begun, since the map ended before.", ge=0)


class TaskView(TaskSummary):
    """A task: what it answered and what it cost."""

    answer: str | None = Field(description="The answer, once it succeeded.")
    error: Failure | None = Field(description="Why it did not succeed.")
    waste_usd: Usd = Field(description="Cost of tokens made and thrown away, not billed, in USD.")
    saved_usd: Usd = Field(description="What answers from the cache would have cost, in USD.")
    max_cost_usd: Usd | None = Field(description="Budget of the task, in USD; none: no own one.")
    prompt_tokens: int = Field(description="Prompt tokens billed, in tokens.", ge=0)
    cached_tokens: int = Field(description="Those of them the engine had cached, in tokens.", ge=0)
    completion_tokens: int = Field(description="Output tokens billed, in tokens.", ge=0)
    parent: ForkView | None = Field(
        default=None, description="The task this one was forked from; none: it was not."
    )
    session: TurnLink | None = Field(
        default=None, description="The session whose conversation it goes on; none: it is of none."
    )
    waiting_for: Literal["approval"] | None = Field(
        default=None,
        description="`approval`: a tool call waits for a person; `GET .../approvals` shows it.",
    )
    forks: tuple[ForkView, ...] = Field(
        default=(), description="Tasks that were forked from this one, oldest first."
    )
    root_task_id: UUID = Field(description="The task a caller submitted, above this one; or this.")
    children: tuple[ChildView, ...] = Field(
        default=(),
        description="Tasks it started, oldest first, at most 100; `GET /v1/tasks?parent=` has all.",
    )
    tree: TreeView | None = Field(
        default=None, description="The task and its children, all the way down, added up."
    )
    progress: MapProgress | None = Field(
        default=None, description="How far a map is; none: it is none."
    )
    links: TaskLinks = Field(description="Where to read on.")


class TaskPage(View):
    """A page of tasks, newest first."""

    tasks: tuple[TaskSummary, ...] = Field(description="The tasks.")
    next_cursor: str | None = Field(
        description="`cursor` of the next page; none: this is the last."
    )


class ModelCallView(View):
    """One attempt of a model call: a row of the ledger."""

    model: str | None = Field(description="Model that was asked.")
    deployment: str | None = Field(description="Deployment that was asked.")
    candidate: int = Field(description="Place of the model in the router's order, from 0.")
    attempt: int = Field(description="Attempt of this generation, from 1; 0: from the cache.")
    outcome: str = Field(description="succeeded, failed, cancelled, lost or cached.")
    waste_cause: str | None = Field(description="Why its tokens were thrown away, if they were.")
    uncached_input_tokens: int = Field(description="Prompt tokens computed, in tokens.")
    cached_input_tokens: int = Field(
        description="Prompt tokens from the engine's cache, in tokens."
    )
    output_tokens: int = Field(description="Tokens generated, in tokens.")
    billed_usd: Usd = Field(description="Billed, in USD.")
    waste_usd: Usd = Field(description="Paid for and thrown away, in USD.")
    saved_usd: Usd = Field(description="Saved by the cache, in USD.")
    queue_ms: float | None = Field(description="Wait in the engine's queue, in milliseconds.")
    first_token_ms: float | None = Field(description="Time to the first token, in milliseconds.")
    duration_ms: float | None = Field(description="Time of the attempt, in milliseconds.")


class ToolCallView(View):
    """One attempt of a tool call."""

    id: str = Field(description="Id of the call, the same for every attempt.")
    name: str = Field(description="The tool.")
    attempt: int = Field(description="Attempt, from 1.")
    arguments: dict[str, Any] = Field(description="Arguments the model chose.")
    ok: bool = Field(description="Whether the tool answered.")
    result: str | None = Field(description="What it answered.")
    blob: str | None = Field(
        default=None,
        description="Of an answer that was cut, where all of it is: "
        "`GET /v1/tasks/{task_id}/blobs/{blob}`.",
    )
    error: str | None = Field(description="Why it did not.")
    duration_ms: float | None = Field(description="Time of the attempt, in milliseconds.")


class ChosenCallView(View):
    """A tool call that a step's model chose."""

    id: str | None = Field(description="Id of the call; none: it was not made.")
    name: str = Field(description="The tool.")
    arguments: dict[str, Any] = Field(description="Its arguments, as its schema has them.")
    ok: bool | None = Field(description="Whether the tool answered; none: not, or not yet, made.")
    result: str | None = Field(description="What the model was told.")
    duration_ms: float | None = Field(
        description="From the first attempt to the end of the last one, in milliseconds."
    )


class StepView(View):
    """One turn of the agent's loop."""

    step: int = Field(description="Number of the step, from 1.", ge=1)
    status: str = Field(description="running, succeeded, cached, failed or cancelled.")
    answered: bool = Field(
        default=False,
        description="An answer that did not end the task, because something was said to it.",
    )
    inherited: bool = Field(
        default=False, description="Taken over from the task this one was forked from, unbilled."
    )
    model: str | None = Field(description="Model that answered.")
    cached: bool = Field(description="Whether the answer came from Overline's cache.")
    text: str | None = Field(description="What the model said.")
    tool_call: ToolChoice | None = Field(
        description="The tool the model chose; none where it could choose several at once."
    )
    tool_result: str | None = Field(description="What that tool answered.")
    chosen_calls: tuple[ChosenCallView, ...] = Field(
        default=(), description="All tool calls the model chose, in its order."
    )
    finish_reason: str | None = Field(description="stop, length or cancelled.")
    decision: dict[str, Any] | None = Field(
        description="The router's decision: candidates in order, each with its reason."
    )
    provenance: list[dict[str, Any]] | None = Field(
        description="The prompt's parts, each with kind, source, length in tokens and if kept."
    )
    prompt_tokens: int = Field(description="Prompt tokens billed, in tokens.", ge=0)
    cached_tokens: int = Field(description="Those of them the engine had cached, in tokens.", ge=0)
    completion_tokens: int = Field(description="Output tokens billed, in tokens.", ge=0)
    cost_usd: Usd = Field(description="Billed, in USD.")
    waste_usd: Usd = Field(description="Paid for and thrown away, in USD.")
    started_at: datetime | None = Field(description="When it began, RFC 3339 in UTC.")
    finished_at: datetime | None = Field(description="When it ended, RFC 3339 in UTC.")
    duration_ms: float | None = Field(description="Time of the step, in milliseconds.")
    model_calls: tuple[ModelCallView, ...] = Field(description="Its rows of the ledger.")
    tool_calls: tuple[ToolCallView, ...] = Field(description="Every attempt of its tool calls.")


class StepList(View):
    """The steps of a task."""

    task_id: UUID = Field(description="The task.")
    web_ui: str = Field(description="URL of its workflow in Temporal's Web UI.")
    steps: tuple[StepView, ...] = Field(description="The steps, first to last.")
    next_cursor: int | None = Field(
        default=None, description="`cursor` of the next page; none: there is none yet."
    )


class Cancellation(View):
    """What became of the wish to cancel."""

    id: UUID = Field(description="The task.")
    status: TaskStatus = Field(description="State of the task when it was asked.")
    requested: bool = Field(description="Whether the task was asked to end; false: it had ended.")
    detail: str = Field(description="The same in words.")


class StreamEvent(View):
    """Data of one server-sent event; its `id` field is `step:seq`, its `event` field `type`."""

    seq: int = Field(
        description="Place in the task's one ordered stream, from 1; 0 of a `gap`, which has none.",
        ge=0,
    )
    step: int = Field(description="Step it belongs to; 0: the task itself.", ge=0)
    type: str = Field(
        description="`text` for tokens, `step.started`, `step.completed`, `tool.completed`, "
        "`reset`, `task.accepted` and others; `task.succeeded`, `task.failed` and "
        "`task.cancelled` end the stream. `gap`: the `Last-Event-ID` was none of this task's, and "
        "the stream begins anew."
    )
    at: datetime = Field(description="When it happened, RFC 3339 in UTC.")
    payload: dict[str, Any] = Field(description="Facts of this type of event.")
