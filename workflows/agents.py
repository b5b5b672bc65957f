"""An agent is data: what a request may name instead of saying it, and how the two are joined."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from workflows.contracts import (
    Asked,
    Limits,
    Name,
    PriorityLevel,
    Sampling,
    TaskRequest,
    ToolUse,
    Webhook,
)
from workflows.output import OutputSchema

__all__ = ["AgentSpec", "resolve", "split_reference"]

# Fields of fields: what a request leaves open within them stays as the agent has it.
_JOINED = ("sampling", "limits")


class AgentSpec(Asked):
    """What an agent is; a task that names it may override every field but the description."""

    description: str = Field(
        default="", max_length=1000, description="What it is for. At most 1,000 characters."
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
    tools: tuple[ToolUse, ...] = Field(default=(), max_length=16, description="Tools it may call.")
    parallel_tool_calls: int = Field(
        default=1,
        ge=1,
        le=16,
        description="How many tool calls it may ask for in one step; they are made at once.",
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
    limits: Limits = Field(default_factory=Limits, description="Where its loop ends.")
    output_schema: OutputSchema | None = Field(
        default=None,
        description="JSON Schema (an object, at most 16,384 bytes) that its answers must obey.",
    )
    cache: Literal["auto", "off"] = Field(
        default="auto", description="`off` never reads nor writes the cache."
    )
    webhook: Webhook | None = Field(
        default=None, description="Who is told when one of its tasks ends."
    )
    priority: PriorityLevel = Field(
        default="default",
        description="Whose calls wait when the engine is busy: `interactive`, `default` or "
        "`batch`. A task's key needs the scope `interactive` for the first.",
    )

    @model_validator(mode="after")
    def _each_tool_once(self) -> AgentSpec:
        names = [tool.name for tool in self.tools]
        if len(names) != len(set(names)):
            raise ValueError("a tool is named twice")
        return self

    def stored(self) -> dict[str, Any]:
        """Return what is kept: only what differs from the defaults, so that new ones change it not.

        Two specifications that say the same are kept as the same.
        """
        return self.model_dump(mode="json", exclude_defaults=True)


def split_reference(reference: str) -> tuple[str, int | None]:
    """Return name and version of `name` or `name@version`; no version is the latest."""
    name, _, version = reference.partition("@")
    return name, int(version) if version else None


def resolve(request: TaskRequest, spec: AgentSpec, *, name: str, version: int) -> TaskRequest:
    """Return the request with everything it leaves open taken from an agent.

    A field that the request gives wins, lists as a whole; `sampling` and `limits` are joined field
    by field. A route given without a model leaves the agent's model behind.

    Raises:
        pydantic.ValidationError: The two contradict each other.
    """
    asked = request.model_dump(mode="json", exclude_unset=True)
    joined = spec.model_dump(mode="json", exclude_unset=True, exclude={"description"})
    if "route" in asked and "model" not in asked:
        joined.pop("model", None)
    for field in _JOINED:
        if field in asked and field in joined:
            asked[field] = joined[field] | asked[field]
    return TaskRequest.model_validate({**joined, **asked, "agent": f"{name}@{version}"})
