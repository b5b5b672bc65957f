"""What crosses the orchestrator's border: one frozen model in, one out.

Only the standard library and pydantic are imported here, so that workflows, activities and the
API can share these shapes. New fields get defaults, because recorded histories must stay readable.
Nothing in here carries a conversation: texts live in Postgres, histories carry references.
"""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Literal
from uuid import UUID

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    StringConstraints,
    model_validator,
)

from workflows.output import OutputSchema

__all__ = [
    "BUILT_IN_TOOLS",
    "INLINE_ANSWER_CHARS",
    "REGISTERED_CALL_MAX_TOKENS",
    "TOOL_CALL_MAX_TOKENS",
    "AccountInput",
    "Admission",
    "AdmitInput",
    "Approval",
    "ApprovalInput",
    "ApprovalWhen",
    "AssembleInput",
    "AssembledPrompt",
    "CacheAnswer",
    "Candidate",
    "Charge",
    "CloseInput",
    "DecideInput",
    "Decision",
    "EmbedInput",
    "EmbedOutput",
    "FailInput",
    "GenerateInput",
    "Generated",
    "IngestInput",
    "IngestOutcome",
    "Limits",
    "LookUpInput",
    "LoopState",
    "Message",
    "Output",
    "Plan",
    "PromptPart",
    "RegisterInput",
    "Registered",
    "Rejected",
    "Sampling",
    "SettleInput",
    "SplitInput",
    "SplitOutput",
    "TaskError",
    "TaskInput",
    "TaskOutcome",
    "TaskRequest",
    "TaskStatus",
    "Tenant",
    "ToolCall",
    "ToolInput",
    "ToolName",
    "ToolOutput",
    "ToolUse",
    "Turn",
    "Usage",
    "generation_key",
    "tool_call_tokens",
]

# A built-in tool, or `registration.tool`.
ToolName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}(\.[A-Za-z0-9_][A-Za-z0-9_./-]{0,127})?$"
    ),
]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
BUILT_IN_TOOLS = frozenset({"calculator", "search"})
# A tool choice is one small JSON object; more tokens than this is a model that rambles.
TOOL_CALL_MAX_TOKENS = 128
# Arguments of a registered tool are as long as its schema lets them be.
REGISTERED_CALL_MAX_TOKENS = 512

# A longer answer stays in Postgres, and only its digest crosses the border.
INLINE_ANSWER_CHARS = 4_000

# `str` would write nothing as 0E-9, which no program but Python's takes for a number in a text.
Usd = Annotated[Decimal, PlainSerializer(lambda value: f"{value:f}", str, when_used="json")]

Name = Annotated[str, StringConstraints(min_length=1, max_length=128)]
AgentName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@[1-9][0-9]{0,8})?$")
]


class Wire(BaseModel):
    """Base of everything that crosses the border: frozen.

    A field this version does not know is left out, because during a rollout a newer process may
    have sent it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")


class Asked(Wire):
    """Base of what a caller writes: there, a field nobody knows is a mistake to be told of."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --- what a caller asks -----------------------------------------------------------------------


class Message(Asked):
    """One message of the conversation so far."""

    role: Literal["system", "user", "assistant"] = Field(
        description="Who speaks: `system`, `user` or `assistant`."
    )
    content: str = Field(
        min_length=1, description="The text, at most 1,000,000 characters.", max_length=1_000_000
    )
    pinned: bool = Field(
        default=False, description="Keep this message however short the window gets."
    )


class Sampling(Asked):
    """How the engine picks tokens."""

    temperature: float = Field(
        default=0.0, ge=0.0, le=2.0, description="Softmax temperature; 0 is greedy. No unit."
    )
    top_p: float = Field(
        default=1.0, gt=0.0, le=1.0, description="Nucleus: smallest probability mass kept, 0 to 1."
    )
    top_k: int = Field(
        default=0, ge=0, le=1000, description="Candidates kept, in tokens; 0 keeps all."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the sampler.")
    repetition_penalty: float = Field(
        default=1.0, ge=0.5, le=2.0, description="Multiplicative penalty of seen tokens; 1 is off."
    )
    presence_penalty: float = Field(
        default=0.0, ge=-2.0, le=2.0, description="Additive penalty of seen tokens; 0 is off."
    )
    frequency_penalty: float = Field(
        default=0.0, ge=-2.0, le=2.0, description="Additive penalty by count; 0 is off."
    )
    max_tokens: int = Field(default=256, ge=1, le=32_768, description="Longest answer, in tokens.")
    min_tokens: int = Field(default=0, ge=0, le=32_768, description="Shortest answer, in tokens.")
    stop: tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...] = Field(
        default=(), max_length=8, description="Texts that end the answer; not part of it."
    )
    ignore_eos: bool = Field(
        default=False, description="Go on past the model's own end of text, up to `max_tokens`."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Sampling:
        if self.min_tokens > self.max_tokens:
            raise ValueError("min_tokens is larger than max_tokens")
        return self


class ApprovalWhen(Asked):
    """Which calls of a tool wait for a person."""

    when: dict[
        Annotated[str, StringConstraints(min_length=1, max_length=128)],
        Annotated[str, StringConstraints(min_length=1, max_length=200)],
    ] = Field(
        min_length=1,
        max_length=16,
        description="Shell patterns (`*`, `?`, `[abc]`) by argument; a call waits when one of them "
        "matches. What is not text is compared as JSON.",
    )


Approval = Literal["never", "always"] | ApprovalWhen


class ToolUse(Asked):
    """A tool the agent may use."""

    name: ToolName = Field(
        description="`calculator`, `search`, or the name of a registered tool (`GET /v1/tools`)."
    )
    must_call: bool = Field(
        default=False, description="The agent answers only after it has called this tool."
    )
    max_calls: int = Field(
        default=3, ge=1, le=10_000, description="How often this tool may be called in a task."
    )
    approval: Approval = Field(
        default="never",
        description="Which calls wait until a person approves them: `never`, `always`, or "
        "`{when: {argument: pattern}}`. A registered tool's own policy cannot be lowered.",
    )
    definition: Sha256 | None = Field(
        default=None,
        description="Digest of the registered definition to use; by default today's. The task "
        "keeps to it, whatever is registered later.",
    )
    timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=600,
        description="Longest time of one attempt of a registered tool, in seconds; by default as "
        "registered.",
    )
    max_attempts: int | None = Field(
        default=None,
        ge=1,
        le=10,
        description="Attempts of a registered tool before the model is told that it failed; by "
        "default as registered.",
    )


class Limits(Asked):
    """Where the agent's loop ends at the latest."""

    max_steps: int = Field(default=8, ge=1, le=10_000, description="Turns of the loop, in steps.")
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Budget in tokens for all the task's calls together, prompts and answers; "
        "checked between steps.",
    )
    max_prompt_tokens: int | None = Field(
        default=None,
        ge=64,
        description="Longest prompt of one call, in tokens, where the model's window is longer: "
        "what is oldest is left out, and a long task's calls cost the same from first to last.",
    )
    deadline_seconds: int | None = Field(
        default=None,
        ge=1,
        le=30 * 24 * 3600,
        description="Seconds from the task's start to its end at the latest; a call that runs "
        "then is cancelled, and paid for as far as it got.",
    )
    max_cost_usd: Usd | None = Field(
        default=None,
        gt=0,
        max_digits=18,
        decimal_places=9,
        description="Budget of the task, in USD; none means the budgets above it only.",
    )


class TaskRequest(Asked):
    """An agent task as a caller submits it. Give `input`, or `messages`, not both."""

    agent: AgentName | None = Field(
        default=None,
        description="Take what this agent says, except for the fields given here: `name`, its "
        "latest version, or `name@version`.",
    )
    input: str | None = Field(
        default=None,
        min_length=1,
        max_length=1_000_000,
        description="What the agent should do; short for one user message. Characters.",
    )
    messages: tuple[Message, ...] = Field(
        default=(), max_length=1000, description="A conversation that ends with a user message."
    )
    system: str | None = Field(
        default=None,
        min_length=1,
        max_length=100_000,
        description="System prompt; always kept in the window. Characters.",
    )
    route: Name = Field(
        default="default", description="Route that chooses among the registered models."
    )
    model: Name | None = Field(
        default=None, description="Use exactly this registered model instead of the route's rules."
    )
    tools: tuple[ToolUse, ...] = Field(
        default=(), max_length=16, description="Tools the agent may call."
    )
    collections: tuple[Name, ...] = Field(
        default=(), max_length=16, description="Names or ids of collections to retrieve from."
    )
    passages: int = Field(
        default=3, ge=0, le=20, description="Passages retrieved into the prompt, at most."
    )
    sampling: Sampling = Field(
        default_factory=Sampling, description="How the engine picks the answer's tokens."
    )
    limits: Limits = Field(default_factory=Limits, description="Where the loop ends.")
    output_schema: OutputSchema | None = Field(
        default=None,
        description="JSON Schema (an object, at most 16,384 bytes) that the answer must obey. Its "
        "properties are written in the order given.",
    )
    cache: Literal["auto", "off"] = Field(
        default="auto",
        description="`auto` reuses an exactly equal earlier call's answer when sampling is greedy; "
        "`off` never reads nor writes the cache.",
    )
    user: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = Field(
        default=None, description="End user the spend is attributed to."
    )
    tags: dict[
        Annotated[str, StringConstraints(min_length=1, max_length=64)],
        Annotated[str, StringConstraints(max_length=200)],
    ] = Field(default_factory=dict, max_length=20, description="Free tags for attribution.")

    @model_validator(mode="after")
    def _one_question(self) -> TaskRequest:
        if (self.input is None) == (not self.messages):
            raise ValueError("give either input or messages")
        if self.messages and self.messages[-1].role != "user":
            raise ValueError("the last message must come from the user")
        names = [tool.name for tool in self.tools]
        if len(names) != len(set(names)):
            raise ValueError("a tool is named twice")
        return self

    def conversation(self) -> tuple[Message, ...]:
        """Return the conversation in messages, whichever way it was given."""
        if self.input is not None:
            return (Message(role="user", content=self.input),)
        return self.messages


# --- the workflow -----------------------------------------------------------------------------


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
    collections: tuple[UUID, ...] = ()
    passages: int = 3
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    cache: Literal["auto", "off"] = "auto"
    output: Output | None = None


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
    rejected: tuple[Rejected, ...] = ()
    cost_usd: Usd = Decimal(0)
    tokens: int = Field(default=0, description="Tokens paid for so far.")
    model: str = ""
    lines: tuple[str, ...] = Field(default=(), description="The last lines shown to people.")
    paused: bool = False
    steering: int = Field(
        default=0, description="Number of the newest wish to pause or go on that was heard."
    )
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


# --- the chain --------------------------------------------------------------------------------


class Call(Wire):
    """Which model call of which task an activity works for."""

    tenant: Tenant
    task_id: UUID
    step: int
    call_key: str


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


def tool_call_tokens(tools: tuple[ToolUse, ...]) -> int:
    """Return how long the choice among some tools may get, in tokens."""
    registered = any(tool.definition for tool in tools)
    return REGISTERED_CALL_MAX_TOKENS if registered else TOOL_CALL_MAX_TOKENS


def generation_key(call_key: str, candidate: int) -> str:
    """Return the key of one candidate's generation within a call."""
    return f"{call_key}#{candidate}"


class AdmitInput(Call):
    """Ask whether the call may happen, and hold its worst-case price."""

    route: str
    model: str | None
    max_tokens: int


class Admission(Wire):
    """The call may happen."""

    held_usd: Usd


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


class GenerateInput(Call):
    """Generate from a staged prompt, continuing from the journal if it was begun before."""

    generation_key: str
    chosen: Candidate
    turn: Turn
    sampling: Sampling
    max_tokens: int
    output: Output | None = None


class AccountInput(Call):
    """Ask the engine what the attempts of a generation produced that did not finish."""

    generation_key: str
    triton_model: str
    patient: bool = Field(
        default=False, description="Ask again while the engine is away: the call ends with this."
    )


class ToolCall(Wire):
    """A tool the model chose, with arguments that obey the tool's schema."""

    name: ToolName
    arguments: dict[str, JsonValue]


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
    epoch: int = 1
    resumed_tokens: int = Field(default=0, description="Tokens continued from, not made again.")
    first_token_ms: float | None = None
    total_ms: float | None = None
    invalid: str | None = Field(
        default=None, description="Why the answer does not obey the task's schema, if so."
    )


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


class ApprovalInput(Call):
    """Ask people whether a tool call may be made."""

    call_id: str
    tool_call: ToolCall


class ToolOutput(Wire):
    """What a tool answered; the text itself is on the step's row."""

    ok: bool
    digest: str
    chars: int
    preview: str = Field(default="", description="First characters, for people who read histories.")
    pending: bool = Field(default=False, description="Nobody has decided yet; nothing was done.")


class SettleInput(Call):
    """Write the ledger, release the hold, store the answer, and maybe end the task."""

    outcome: Literal["succeeded", "failed", "cancelled", "cached"]
    model: str | None = None
    generation_key: str | None = None
    finish_reason: str | None = None
    tool_call: ToolCall | None = None
    decision: Decision | None = None
    parts: tuple[PromptPart, ...] = ()
    cache_key: str | None = None
    cache_hit: UUID | None = None
    collections: tuple[UUID, ...] = ()
    error: TaskError | None = None
    finish: TaskStatus | None = None


class Charge(Wire):
    """What the call cost."""

    billed_usd: Usd
    waste_usd: Usd = Decimal(0)
    usage: Usage = Usage()


class CloseInput(Wire):
    """End a task that no settlement ends."""

    tenant: Tenant
    task_id: UUID
    status: TaskStatus
    step: int
    error: TaskError | None = None


# --- tools --------------------------------------------------------------------------------------


class RegisterInput(Wire):
    """Input of `RegisterTools`; the registration itself is a blob of the tenant's."""

    tenant: Tenant
    request: Sha256


class Registered(Wire):
    """Which tools a registration has."""

    source: str
    tools: tuple[ToolName, ...]


# --- ingestion --------------------------------------------------------------------------------


class IngestInput(Wire):
    """Input of `IngestDocument`; the text is in the document's row."""

    tenant: Tenant
    collection_id: UUID
    document_id: UUID
    version: int


class FailInput(IngestInput):
    """Say on the document's row why it could not be ingested."""

    error: TaskError


class SplitInput(IngestInput):
    """Split a document into chunks."""


class SplitOutput(Wire):
    """How many chunks a document has."""

    chunks: int
    batches: int


class EmbedInput(IngestInput):
    """Embed and store one batch of a document's chunks."""

    batch: int


class EmbedOutput(Wire):
    """How many chunks were stored."""

    stored: int


class IngestOutcome(Wire):
    """Result of `IngestDocument`."""

    document_id: UUID
    chunks: int


CacheAnswer.model_rebuild()
