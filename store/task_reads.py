"""Reading tasks, their steps and their calls; one round trip each."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from store.conversations import Earlier, SaidTo, earlier_that_fit, said_to_that_fit
from store.database import Database, Row
from store.errors import NotFound
from store.step_calls import ChosenCall, chosen_calls


@dataclass(frozen=True, slots=True)
class Task:
    """A task as its owner sees it; amounts in USD, token counts are the useful ones."""

    task_id: UUID
    team_id: UUID
    key_id: UUID
    workflow_id: str
    run_id: str | None
    status: str
    route: str
    input: dict[str, Any]
    user: str | None
    tags: dict[str, str]
    agent_name: str | None
    agent_version: int | None
    max_cost_usd: Decimal | None
    answer: str | None
    error: dict[str, Any] | None
    steps: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    billed_usd: Decimal
    waste_usd: Decimal
    saved_usd: Decimal
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    paused_at: datetime | None
    pause_reason: dict[str, Any] | None
    kind: str
    parent_task_id: UUID | None
    parent_step: int | None
    root_task_id: UUID
    session_id: UUID | None
    session_number: int | None


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A page of tasks, newest first. `next_cursor` is None on the last page."""

    tasks: list[Task]
    next_cursor: UUID | None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What a finished step said and learned: what the next prompt is built from.

    Attributes:
        answered: it was an answer that did not end the task, because something was said to that.
    """

    step: int
    text: str
    calls: list[ChosenCall]
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Transcript:
    """A task's request and its finished steps in order, or the newest of them.

    Attributes:
        omitted: How many steps before the first of `steps` were not read.
        said: What was said to it while it ran, or the newest of that.
        earlier: What was said in its session before it, or the newest of that.
    """

    input: dict[str, Any]
    steps: list[StepRecord]
    omitted: int = 0
    said: list[SaidTo] = field(default_factory=list)
    earlier: list[Earlier] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One ledger row: one attempt of a model call. `latency` figures in milliseconds."""

    call_key: str
    candidate: int
    epoch: int
    model: str
    deployment: str | None
    replica: str | None
    outcome: str
    waste_cause: str | None
    error_code: str | None
    uncached_input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    wasted_uncached_input_tokens: int
    wasted_cached_input_tokens: int
    wasted_output_tokens: int
    cost_usd: Decimal
    billed_usd: Decimal
    waste_usd: Decimal
    saved_usd: Decimal
    usage_source: str
    trace_id: str | None
    queue_ms: float | None
    first_token_ms: float | None
    duration_ms: float | None
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """One attempt of a tool call."""

    call_id: str
    attempt: int
    name: str
    arguments: dict[str, Any]
    result_text: str | None
    ok: bool
    error: dict[str, Any] | None
    started_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class StepDetail:
    """A step with everything that happened in it.

    Attributes:
        tool_call: what it chose; a list where it may choose several calls.
        tool_result: what the tool answered, where there can be one call only.
        tool_results: what the tools answered, by place; see `chosen`.
        answered: it was an answer that did not end the task, because something was said to that.
    """

    step: int
    call_key: str
    status: str
    model: str | None
    decision: dict[str, Any] | None
    provenance: list[Any] | None
    text: str | None
    tool_call: dict[str, Any] | list[dict[str, Any]] | None
    tool_result: str | None
    tool_results: dict[str, dict[str, Any]] | None
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    billed_usd: Decimal
    waste_usd: Decimal
    saved_usd: Decimal
    started_at: datetime
    ended_at: datetime | None
    inherited: bool
    answered: bool
    calls: list[CallRecord]
    tool_calls: list[ToolCallRecord]

    @property
    def chosen(self) -> list[ChosenCall]:
        """The tool calls it chose, in their order."""
        return chosen_calls(self.tool_call, self.tool_result, self.tool_results)


def _columns(record: type, without: tuple[str, ...] = ()) -> str:
    names = [name for name in record.__dataclass_fields__ if name not in without]  # type: ignore[attr-defined]
    return ", ".join("user_id as user" if name == "user" else name for name in names)


# Paused is a wish beside the state, and what a reader wants to know first.
_PAUSED = "paused_at is not null and finished_at is null"
_REASON = (
    f"case when {_PAUSED} then (select w.reason from budget_waits w"
    " where w.organisation_id = tasks.organisation_id and w.task_id = tasks.task_id"
    " and w.since is not null) end"
)
_TASK = (
    _columns(Task)
    .replace("user_id as user", 'user_id as "user"')
    .replace(" pause_reason,", f" {_REASON} as pause_reason,")
    .replace(" status,", f" case when {_PAUSED} then 'paused' else status end as status,")
)
_CALL = _columns(CallRecord)
_TOOL = _columns(ToolCallRecord)
_STEP = _columns(StepDetail, without=("calls", "tool_calls"))


async def get_task(db: Database, organisation_id: UUID, task_id: UUID) -> Task | None:
    """One task, or None: not there, discarded, or another organisation's."""
    rows = await db.run(
        organisation_id,
        f"select {_TASK} from tasks where organisation_id = %s and task_id = %s"
        " and status <> 'discarded'",
        (organisation_id, task_id),
    )
    return Task(**rows[0]) if rows else None


async def list_tasks(
    db: Database,
    organisation_id: UUID,
    *,
    cursor: UUID | None = None,
    limit: int = 50,
    status: str | None = None,
    parent: UUID | None = None,
) -> TaskPage:
    """Tasks that callers submitted, or the children of one, from the newest to the oldest.

    Args:
        cursor: `next_cursor` of the page before.
        limit: most tasks on the page.
        status: only tasks in this state.
        parent: the children of this task.
    """
    among = "parent_task_id is null" if parent is None else "parent_task_id = %s"
    stored = ["accepted", "running"] if status == "paused" else [status]
    rows = await db.run(
        organisation_id,
        f"select {_TASK} from tasks where organisation_id = %s"
        " and (%s::uuid is null or task_id < %s)"
        f" and (%s::text is null or (status = any(%s) and ({_PAUSED}) = %s))"
        f" and {among}"
        " and status <> 'discarded' order by task_id desc limit %s",
        (
            *(organisation_id, cursor, cursor, status, stored, status == "paused"),
            *(() if parent is None else (parent,)),
            limit + 1,
        ),
    )
    tasks = [Task(**row) for row in rows[:limit]]
    return TaskPage(tasks, tasks[-1].task_id if len(rows) > limit else None)


async def list_steps(
    db: Database, organisation_id: UUID, task_id: UUID, *, after: int = 0, limit: int | None = None
) -> list[StepDetail]:
    """A task's steps with their ledger rows and tool calls; empty when there is no such task.

    Args:
        after: number of the last step already seen; 0 reads from the first.
        limit: most steps; None for all.
    """
    # Steps are numbered without gaps, so a number is a place.
    where = "where organisation_id = %s and task_id = %s and step > %s and step <= %s"
    key = (organisation_id, task_id, after, 2**31 - 1 if limit is None else after + limit)
    steps, calls, tools = await db.run_many(
        organisation_id,
        [
            (f"select {_STEP} from steps {where} order by step", key),
            (
                (
                    f"select step, {_CALL} from model_calls {where}"
                    " order by call_key, candidate, epoch"
                ),
                key,
            ),
            (f"select step, {_TOOL} from tool_calls {where} order by call_id, attempt", key),
        ],
    )
    calls_of = _by_step(calls)
    tools_of = _by_step(tools)
    return [
        StepDetail(
            **row,
            calls=[CallRecord(**call) for call in calls_of.get(row["step"], [])],
            tool_calls=[ToolCallRecord(**call) for call in tools_of.get(row["step"], [])],
        )
        for row in steps
    ]


# A step in a prompt is a message with its frame: fewer tokens it cannot have. And hardly any token
# stands for more bytes than these.
_TOKENS_OF_A_STEP = 8
_BYTES_OF_A_TOKEN = 16

# Newest first, until what is read is more than a window can take: what is read for a call does not
# grow with the length of its task.
_STEPS_THAT_FIT = """
select step, text, tool_call, tool_result, tool_results, answered
  from (select n.*, sum(octet_length(coalesce(tool_result, tool_results::text, text)))
                    over (order by step desc rows unbounded preceding) as so_far
          from (select step, coalesce(text, '') as text, tool_call, tool_result, tool_results,
                       answered
                  from steps
                 where organisation_id = %s and task_id = %s
                   and status in ('succeeded', 'cached')
                 order by step desc limit %s) n) read
 where so_far <= %s
 order by step
"""


async def load_transcript(
    db: Database, organisation_id: UUID, task_id: UUID, *, tokens: int = 1_000_000
) -> Transcript:
    """What a task was asked and what its newest finished steps brought.

    Args:
        tokens: size of the window it is read for; older steps that cannot fit are not read.

    Raises:
        NotFound: the organisation has no such task.
    """
    key = (organisation_id, task_id)
    most, size = tokens // _TOKENS_OF_A_STEP + 1, tokens * _BYTES_OF_A_TOKEN
    tasks, steps, said, earlier = await db.run_many(
        organisation_id,
        [
            ("select input from tasks where organisation_id = %s and task_id = %s", key),
            (_STEPS_THAT_FIT, (*key, most, size)),
            said_to_that_fit(*key, most=most, size=size),
            earlier_that_fit(*key, most=most, size=size),
        ],
    )
    if not tasks:
        raise NotFound("no such task")
    omitted = steps[0]["step"] - 1 if steps else 0
    return Transcript(
        tasks[0]["input"],
        [
            StepRecord(
                row.pop("step"),
                row.pop("text"),
                answered=row.pop("answered"),
                calls=chosen_calls(**row),
            )
            for row in steps
        ],
        omitted=omitted + (said[0]["number"] - 1 if said else 0),
        said=[SaidTo(**row) for row in said],
        earlier=[Earlier(**row) for row in earlier],
    )


async def load_output_schema(db: Database, organisation_id: UUID, task_id: UUID) -> str | None:
    """The text of the JSON Schema that a task's answer must obey, if it has one."""
    rows = await db.run(
        organisation_id,
        "select input ->> 'output_schema' as schema from tasks"
        " where organisation_id = %s and task_id = %s",
        (organisation_id, task_id),
    )
    if not rows:
        raise NotFound("no such task")
    schema: str | None = rows[0]["schema"]
    return schema


def _by_step(rows: list[Row]) -> dict[int, list[Row]]:
    grouped: dict[int, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.pop("step"), []).append(row)
    return grouped
