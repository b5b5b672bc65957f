"""Tool calls and registrations, across the border."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from pydantic import Field, JsonValue

from workflows.contracts.base import Sha256, ToolName, Wire
from workflows.contracts.request import ToolUse
from workflows.contracts.safety import Safety, Screened
from workflows.contracts.task import Call, Tenant

__all__ = [
    "REGISTERED_CALL_MAX_TOKENS",
    "TOOL_CALL_MAX_TOKENS",
    "ApprovalInput",
    "Decided",
    "RegisterInput",
    "Registered",
    "ReleaseInput",
    "ToolCall",
    "ToolInput",
    "ToolOutput",
    "choice_tokens",
    "tool_call_tokens",
]

# A tool choice is one small JSON object; more tokens than this is a model that rambles.
TOOL_CALL_MAX_TOKENS = 128


# Arguments of a registered tool are as long as its schema lets them be.
REGISTERED_CALL_MAX_TOKENS = 512
# Of several calls together: what a step may cost at worst is held before it.
CHOICE_MAX_TOKENS = 2048


class ToolCall(Wire):
    """A tool the model chose, with arguments that obey the tool's schema."""

    name: ToolName
    arguments: dict[str, JsonValue]


def tool_call_tokens(tools: tuple[ToolUse, ...], parallel: int = 1) -> int:
    """Return how long the choice among some tools may get, in tokens.

    Args:
        tools: Those of the task.
        parallel: Up to how many calls are chosen at once.
    """
    registered = any(tool.definition for tool in tools)
    return choice_tokens(registered=registered, parallel=parallel)


def choice_tokens(*, registered: bool, parallel: int) -> int:
    """Return how long a choice of several calls may get, in tokens."""
    each = REGISTERED_CALL_MAX_TOKENS if registered else TOOL_CALL_MAX_TOKENS
    return each if parallel == 1 else min(each * parallel, CHOICE_MAX_TOKENS)


class ToolInput(Call):
    """Run one tool call."""

    call_id: str
    tool_call: ToolCall
    collections: tuple[UUID, ...]
    definition: Sha256 | None = Field(
        default=None, description="Of a registered tool, which definition."
    )
    approval: bool = Field(
        default=False, description="A person decides; their word is on the approval's row."
    )
    timeout_seconds: int = 30
    max_attempts: int = 3
    place: int | None = Field(
        default=None, description="Where a step may have several calls: which of them, from 1."
    )
    safety: Safety | None = None


class ApprovalInput(Call):
    """Ask people whether a tool call may be made."""

    call_id: str
    tool_call: ToolCall


class Decided(Wire):
    """What a person decided; nothing yet, where `decision` is none."""

    decision: Literal["approve", "refuse"] | None = None
    reason: str | None = None


class ToolOutput(Wire):
    """What a tool answered; the text itself is on the step's row."""

    ok: bool
    digest: str
    chars: int
    preview: str = Field(default="", description="First characters, for people who read histories.")
    pending: bool = Field(default=False, description="Nobody has decided yet; nothing was done.")
    untrusted: bool = Field(default=False, description="It may have words from outside in it.")
    screened: Screened | None = Field(
        default=None, description="What the policy decided about its answer, if it found something."
    )
    sealed: Sha256 | None = Field(
        default=None,
        description="Of an answer that a rule wants a person asked about: where it is kept, "
        "encrypted.",
    )


class ReleaseInput(Wire):
    """Tell the model an answer that a rule holds back, if a person allows it."""

    call: ToolInput
    approval_id: str
    sealed: Sha256
    rule: str


class RegisterInput(Wire):
    """Input of `RegisterTools`; the registration itself is a blob of the tenant's."""

    tenant: Tenant
    request: Sha256


class Registered(Wire):
    """Which tools a registration has."""

    source: str
    tools: tuple[ToolName, ...]
