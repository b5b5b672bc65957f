"""What a caller asks: a task, its tools, its limits."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from workflows.contracts.base import AgentName, Asked, Name, Sha256, ToolName, Usd
from workflows.contracts.safety import Safety
from workflows.contracts.webhook import Webhook
from workflows.output import OutputSchema

__all__ = [
    "BUILT_IN_TOOLS",
    "Approval",
    "ApprovalWhen",
    "Asking",
    "FiledRequest",
    "Limits",
    "Message",
    "PriorityLevel",
    "Sampling",
    "SessionRequest",
    "TaskRequest",
    "ToolUse",
]

BUILT_IN_TOOLS = frozenset({"calculator", "search"})


# Whose turn it is at an engine first: at each level teams share by tokens.
PriorityLevel = Literal["interactive", "default", "batch"]


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


Approval = Literal["never", "always", "after_untrusted"] | ApprovalWhen


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
        description="Which calls wait until a person approves them: `never`, `always`, "
        "`{when: {argument: pattern}}`, or `after_untrusted`: once the conversation has content "
        "from outside. A registered tool's own policy cannot be lowered.",
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
    on_budget: Literal["pause", "wait", "fail"] = Field(
        default="pause",
        description="When a budget is spent: `pause` until it is raised or its next period begins, "
        "if the task has begun and the budget is not its own, else fail; `wait`: pause in any "
        "case; `fail`: end.",
    )


class Asking(Asked):
    """What a task is asked with, besides the question."""

    agent: AgentName | None = Field(
        default=None,
        description="Take what this agent says, except for the fields given here: `name`, its "
        "latest version, or `name@version`.",
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
    parallel_tool_calls: int = Field(
        default=1,
        ge=1,
        le=16,
        description="How many tool calls the agent may ask for in one step; they are made at once.",
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
    webhook: Webhook | None = Field(default=None, description="Who is told when the task ends.")
    priority: PriorityLevel = Field(
        default="default",
        description="Whose calls wait when the engine is busy: `batch` behind all others; "
        "`interactive`, for keys with that scope, before all others.",
    )
    user: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = Field(
        default=None, description="End user the spend is attributed to."
    )
    tags: dict[
        Annotated[str, StringConstraints(min_length=1, max_length=64)],
        Annotated[str, StringConstraints(max_length=200)],
    ] = Field(default_factory=dict, max_length=20, description="Free tags for attribution.")

    @model_validator(mode="after")
    def _each_tool_once(self) -> Self:
        names = [tool.name for tool in self.tools]
        if len(names) != len(set(names)):
            raise ValueError("a tool is named twice")
        return self


class TaskRequest(Asking):
    """An agent task as a caller submits it. Give `input`, or `messages`, not both."""

    input: str | None = Field(
        default=None,
        min_length=1,
        max_length=1_000_000,
        description="What the agent should do; short for one user message. Characters.",
    )
    messages: tuple[Message, ...] = Field(
        default=(), max_length=1000, description="A conversation that ends with a user message."
    )

    @model_validator(mode="after")
    def _one_question(self) -> TaskRequest:
        if (self.input is None) == (not self.messages):
            raise ValueError("give either input or messages")
        if self.messages and self.messages[-1].role != "user":
            raise ValueError("the last message must come from the user")
        return self

    def conversation(self) -> tuple[Message, ...]:
        """Return the conversation in messages, whichever way it was given."""
        if self.input is not None:
            return (Message(role="user", content=self.input),)
        return self.messages


class FiledRequest(TaskRequest):
    """A request as it is on file: with the policy that it was screened by."""

    safety: Safety | None = Field(
        default=None, description="The policy it was screened by; none: there was none."
    )


class SessionRequest(Asking):
    """A conversation to begin: what each of its turns is asked with."""

    def asking(self, content: str) -> TaskRequest:
        """Return the request of a turn, by what its message says."""
        said = self.model_dump(mode="json", exclude_unset=True)
        return TaskRequest.model_validate({**said, "input": content})
