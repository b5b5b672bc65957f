"""The layers of one model call: what each is asked, and what it says."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal
from uuid import UUID

from pydantic import Field

from workflows.contracts.base import Sha256, ToolName, Usd, Wire
from workflows.contracts.request import Sampling
from workflows.contracts.safety import Safety, Screened
from workflows.contracts.task import Call, Output, Plan, Rejected, TaskError, TaskStatus
from workflows.contracts.tools import ToolCall

__all__ = [
    "INLINE_ANSWER_CHARS",
    "AccountInput",
    "Admission",
    "AdmitInput",
    "AssembleInput",
    "AssembledPrompt",
    "CacheAnswer",
    "Candidate",
    "Charge",
    "ConcludeInput",
    "Concluded",
    "DecideInput",
    "Decision",
    "GenerateInput",
    "Generated",
    "LookUpInput",
    "PromptPart",
    "ReleaseAnswerInput",
    "Released",
    "SettleInput",
    "Turn",
    "Usage",
    "generation_key",
]

# A longer answer stays in Postgres, and only its digest crosses the border.
INLINE_ANSWER_CHARS = 4_000


class Turn(Wire):
    """What a model call is for: a choice among tools, or the answer."""

    purpose: Literal["tool_call", "answer"]
    tools: tuple[ToolName, ...] = ()
    may_answer: bool = Field(
        default=True, description="The model may choose that no tool is needed."
    )
    definitions: dict[ToolName, Sha256] = Field(
        default_factory=dict, description="Which definition of each registered tool is meant."
    )
    rejected: tuple[Rejected, ...] = Field(
        default=(), description="Answers so far that did not obey the task's schema."
    )
    parallel: int = Field(
        default=1,
        description="Up to how many calls are chosen; with more than one the choice is a list.",
    )


def generation_key(call_key: str, candidate: int) -> str:
    """Return the key of one candidate's generation within a call."""
    return f"{call_key}#{candidate}"


class AdmitInput(Call):
    """Ask whether the call may happen, and hold its worst-case price."""

    route: str
    model: str | None
    max_tokens: int
    prompt_chars: int = Field(default=0, description="About how long the prompt is.")
    on_budget: Literal["pause", "wait", "fail"] = "fail"


class Admission(Wire):
    """The call may happen."""

    held_usd: Usd
    usual_output_tokens: int | None = Field(
        default=None,
        description="What the team's last calls made, on average, in tokens; none: no calls yet.",
    )


class LookUpInput(Call):
    """Ask whether an equal call has been answered already."""

    plan: Plan
    turn: Turn
    transcript_digest: str


class CacheAnswer(Wire):
    """Hit (with the answer) or miss; `key` is where settle may store the answer."""

    key: str | None = None
    hit: UUID | None = None
    model: str | None = None
    answer: str | None = None
    digest: str = ""
    chars: int = 0
    finish_reason: str | None = None
    tool_call: ToolCall | None = None
    tool_calls: tuple[ToolCall, ...] = Field(
        default=(), description="Where the turn may choose several: all of them."
    )


class DecideInput(Call):
    """Ask which models may answer, best first."""

    route: str
    model: str | None
    turn: Turn
    prompt_chars: int
    max_tokens: int
    output: Output | None = Field(
        default=None, description="Models that can be held to it come first, if there are any."
    )


class Candidate(Wire):
    """One model that may answer, and why."""

    model: str
    version: str
    deployment: str
    triton_model: str
    urls: tuple[str, ...]
    tokenizer_version: str
    reason: str
    constrained: bool = Field(
        default=False, description="The engine holds its answer to the task's schema."
    )
    engine: Literal["triton", "openai"] = Field(
        default="triton",
        description="Takes token ids, and can go on from them, or speaks OpenAI's protocol.",
    )
    deployment_class: str = Field(
        default="", description="Whose queue its calls wait in; empty: the task's own."
    )


class Decision(Wire):
    """Ordered candidates; the first is asked first."""

    route: str
    candidates: tuple[Candidate, ...]
    refused: tuple[str, ...] = Field(
        default=(), description="Models of the route that cannot take this call, and why not."
    )


class AssembleInput(Call):
    """Build what the model sees."""

    candidate: int
    chosen: Candidate
    turn: Turn
    collections: tuple[UUID, ...]
    passages: int
    max_tokens: int
    max_prompt_tokens: int | None = None
    safety: Safety | None = None


class PromptPart(Wire):
    """Provenance of one part of a prompt."""

    kind: Literal["system", "passage", "message", "tool_result"]
    source: str = Field(description="Message number, chunk id or step it came from.")
    tokens: int
    kept: bool = True


class AssembledPrompt(Wire):
    """A prompt staged for generation: a reference, never the text."""

    generation_key: str
    prompt_tokens: int
    max_tokens: int
    parts: tuple[PromptPart, ...] = Field(
        default=(), description="Of old histories; they are on the step's row."
    )
    dropped: int = Field(default=0, description="Parts that did not fit the window.")
    screened: Screened | None = Field(
        default=None, description="What the policy decided about passages, if it found something."
    )


class GenerateInput(Call):
    """Generate from a staged prompt, continuing from the journal if it was begun before."""

    generation_key: str
    chosen: Candidate
    turn: Turn
    sampling: Sampling
    max_tokens: int
    output: Output | None = None
    has_next: bool = Field(
        default=False, description="Another candidate waits, for what fails before it began."
    )
    safety: Safety | None = None


class AccountInput(Call):
    """Ask the engine what the attempts of a generation produced that did not finish."""

    generation_key: str
    triton_model: str
    patient: bool = Field(
        default=False, description="Ask again while the engine is away: the call ends with this."
    )


class Usage(Wire):
    """Tokens of one generation as its caller pays them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Generated(Wire):
    """A finished generation. A long text stays in the journal and only its digest is here."""

    model: str
    finish_reason: str
    usage: Usage
    digest: str
    chars: int
    answer: str | None = None
    tool_call: ToolCall | None = None
    tool_calls: tuple[ToolCall, ...] = Field(
        default=(), description="Where the turn may choose several: all of them."
    )
    epoch: int = 1
    resumed_tokens: int = Field(default=0, description="Tokens continued from, not made again.")
    first_token_ms: float | None = None
    total_ms: float | None = None
    invalid: str | None = Field(
        default=None, description="Why the answer does not obey the task's schema, if so."
    )
    screened: Screened | None = Field(
        default=None, description="What the policy decided about it, if it found something."
    )
    sealed: Sha256 | None = Field(
        default=None,
        description="Of an answer that a rule wants a person asked about: where it is kept, "
        "encrypted.",
    )


class ReleaseAnswerInput(Call):
    """Let an answer pass that a rule holds back, if a person allows it."""

    generation_key: str
    approval_id: str
    generated: Generated
    output: Output | None = None


class Released(Wire):
    """The answer as it is now; none: nobody has decided yet."""

    generated: Generated | None = None


class SettleInput(Call):
    """Write the ledger, release the hold, store the answer, and maybe end the task."""

    outcome: Literal["succeeded", "failed", "cancelled", "cached"]
    model: str | None = None
    generation_key: str | None = None
    finish_reason: str | None = None
    tool_call: ToolCall | None = None
    tool_calls: tuple[ToolCall, ...] = Field(
        default=(), description="Where the turn may choose several: all of them."
    )
    decision: Decision | None = None
    parts: tuple[PromptPart, ...] = ()
    cache_key: str | None = None
    cache_hit: UUID | None = None
    collections: tuple[UUID, ...] = ()
    error: TaskError | None = None
    finish: TaskStatus | None = None
    unless_told: bool = Field(
        default=False, description="Do not end the task when somebody said something to it."
    )


class ConcludeInput(Call):
    """End a task whose answer was settled before a person let it pass."""

    finish: TaskStatus
    error: TaskError | None = None
    unless_told: bool = False


class Concluded(Wire):
    """What became of the task."""

    goes_on: bool = Field(
        default=False, description="It did not end with it, since something was said to it."
    )


class Charge(Wire):
    """What the call cost."""

    billed_usd: Usd
    waste_usd: Usd = Decimal(0)
    usage: Usage = Usage()
    goes_on: bool = Field(
        default=False, description="The task did not end with it, since something was said to it."
    )
