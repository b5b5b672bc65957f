"""Calls of the OpenAI-compatible surface: what is on file of one, and what its workflow is told.

The request itself is in the task's row, as text; a history carries ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from workflows.contracts.base import Wire
from workflows.contracts.task import TaskError, Tenant

__all__ = [
    "CLIENT_GONE",
    "LONGEST",
    "CallEnd",
    "CallInput",
    "CallSpec",
    "Endpoint",
    "OnDisconnect",
]

#: With this word whoever makes a call is cancelled when its client has gone.
CLIENT_GONE = "client gone"
#: By which parameters the longest answer is said, the first one first.
LONGEST = ("max_completion_tokens", "max_tokens")

Endpoint = Literal["chat", "completions", "responses", "embeddings"]
OnDisconnect = Literal["cancel", "finish"]


@dataclass(frozen=True, slots=True)
class CallSpec:
    """A call as it was asked, whichever route took it.

    Attributes:
        model: As it was asked for: a model, a wildcard's match, or a route.
        messages: Chat messages, exactly as they came; none for a completion of a text.
        prompt: The text of a completion.
        parameters: Everything else that reaches a model, by the names of chat completions.
        shown: Fields of the request that its answer repeats.
        stored: Whether it may be read again by its id.
        on_disconnect: What becomes of it when the client goes away.
        policy: Version of the safety policy that its texts were screened by; 0: none held.
    """

    endpoint: Endpoint
    model: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    prompt: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    shown: dict[str, Any] = field(default_factory=dict)
    user: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    stored: bool = True
    on_disconnect: OnDisconnect = "cancel"
    policy: int = 0

    def document(self) -> dict[str, Any]:
        """Return it as it is kept; what else the row has is not repeated."""
        kept: dict[str, Any] = {
            "endpoint": self.endpoint,
            "model": self.model,
            "parameters": self.parameters,
            "on_disconnect": self.on_disconnect,
        }
        if self.prompt is None:
            kept["messages"] = self.messages
        else:
            kept["prompt"] = self.prompt
        if self.shown:
            kept["shown"] = self.shown
        if self.policy:
            kept["policy"] = self.policy
        return kept

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> CallSpec:
        """Return a kept one."""
        return cls(
            endpoint=kept["endpoint"],
            model=kept["model"],
            messages=list(kept.get("messages", ())),
            prompt=kept.get("prompt"),
            parameters=dict(kept["parameters"]),
            shown=dict(kept.get("shown", {})),
            on_disconnect=kept.get("on_disconnect", "cancel"),
            policy=kept.get("policy", 0),
        )

    @property
    def longest(self) -> int | None:
        """Longest answer that was asked for, in tokens."""
        newer, older = (self.parameters.get(name) for name in LONGEST)
        value = newer or older
        return int(value) if value is not None else None

    @property
    def choices(self) -> int:
        """How many answers were asked for."""
        return int(self.parameters.get("n") or 1)


class CallInput(Wire):
    """Input of `CallTask`: a call whose process died, and its activities' own."""

    tenant: Tenant
    task_id: UUID


class CallEnd(CallInput):
    """End a call that nobody goes on with."""

    cancelled: bool = False
    error: TaskError | None = None
