"""The task as its workflow knows it: who pays, what steers the loop, how far it is."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Literal
from uuid import UUID

from pydantic import Field

from workflows.contracts.base import ToolName, Usd, Wire
from workflows.contracts.request import Limits, PriorityLevel, Sampling, ToolUse
from workflows.contracts.safety import Safety, Screened

__all__ = [
    "Call",
    "CloseInput",
    "JudgeInput",
    "Judged",
    "LoopState",
    "Output",
    "Plan",
    "Rejected",
    "TaskError",
    "TaskInput",
    "TaskOutcome",
    "TaskStatus",
    "Tenant",
]


class TaskStatus(StrEnum):
    """State of a task; the last three are final."""

    ACCEPTED = "accepted"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Tenant(Wire):
    """Who asked, and who pays."""

    organisation_id: UUID
    team_id: UUID
    key_id: UUID


class Output(Wire):
    """What the answer must obey; the schema itself is in the task's row."""

    digest: str = Field(description="SHA-256 of the schema's text.")


class Rejected(Wire):
    """An answer that did not obey its schema."""

    step: int
    problem: str = Field(description="What is wrong with it, for the model to read.")


class Plan(Wire):
    """The part of a request that steers the loop: small, and without any text of the caller's."""

    route: str = "default"
    model: str | None = None
    tools: tuple[ToolUse, ...] = ()
    parallel_tool_calls: int = 1
    untrusted: bool = Field(
        default=False, description="What it is asked may have words from outside in it."
    )
    collections: tuple[UUID, ...] = ()
    passages: int = 3
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    cache: Literal["auto", "off"] = "auto"
    output: Output | None = None
    priority: PriorityLevel = "default"
    safety: Safety | None = None


class LoopState(Wire):
    """How far a task's loop is: what a next run of the workflow, or a fork, starts from."""

    step: int = 0
    digest: str = Field(description="Digest of the conversation so far.")
    chars: int = Field(description="Its length, in characters.")
    calls: dict[ToolName, int] = Field(
        default_factory=dict, description="How often each tool was called."
    )
    asked: tuple[str, ...] = Field(default=(), description="Digests of the tool calls made.")
    chose_to_answer: bool = False
    untrusted: bool = Field(
        default=False, description="The conversation may have words from outside in it."
    )
    rejected: tuple[Rejected, ...] = ()
    cost_usd: Usd = Decimal(0)
    tokens: int = Field(default=0, description="Tokens paid for so far.")
    model: str = ""
    lines: tuple[str, ...] = Field(default=(), description="The last lines shown to people.")
    paused: bool = False
    steering: int = Field(
        default=0, description="Number of the newest wish to pause or go on that was heard."
    )
    messages: int = Field(
        default=0, description="Number of the newest message in the conversation."
    )
    told: int = Field(default=0, description="Number of the newest message that was heard of.")
    started_at: float | None = Field(
        default=None, description="When the first run started, in Unix seconds."
    )


class TaskInput(Wire):
    """Input of `AgentTask`. The messages themselves are in the task's row."""

    task_id: UUID
    tenant: Tenant
    plan: Plan
    prompt_digest: str = Field(description="SHA-256 of system prompt and messages, canonical JSON.")
    prompt_chars: int = Field(description="Length of system prompt and messages, in characters.")
    state: LoopState | None = Field(
        default=None, description="Where to go on from; none is the beginning."
    )


class TaskError(Wire):
    """Why a task did not succeed; `code` is documented in docs/errors.md."""

    code: str
    message: str
    step: int | None = None
    layer: str | None = None


class TaskOutcome(Wire):
    """Result of `AgentTask`."""

    task_id: UUID
    status: TaskStatus
    steps: int
    answer: str | None = Field(
        default=None, description="The answer when it is short; else read it from the task."
    )
    cost_usd: Usd = Decimal(0)
    error: TaskError | None = None


class Call(Wire):
    """Which model call of which task an activity works for."""

    tenant: Tenant
    task_id: UUID
    step: int
    call_key: str


class JudgeInput(Call):
    """Have models judge what a task is asked."""

    safety: Safety


class Judged(Wire):
    """What they say; nothing where they object to nothing."""

    screened: Screened | None = None


class CloseInput(Wire):
    """End a task that no settlement ends."""

    tenant: Tenant
    task_id: UUID
    status: TaskStatus
    step: int
    error: TaskError | None = None
