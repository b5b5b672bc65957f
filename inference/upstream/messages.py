"""What the client of an upstream takes and gives: one request, its chunks, its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inference.usage import TokenUsage

__all__ = [
    "ChatChunk",
    "ChatFinal",
    "ChatRequest",
    "ChatTimings",
    "Delta",
    "EmbeddingAnswer",
    "ToolPiece",
    "Upstream",
]


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where an upstream is, and what it is asked with.

    Attributes:
        name: What errors and traces call it.
        base_url: Such as `https://api.openai.com/v1`.
        key: Its API key; None where it wants none. Never shown.
    """

    name: str
    base_url: str
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One attempt of one generation.

    Attributes:
        model: The upstream's own name of it.
        messages: Sent as they are: a list, or JSON that was read already (`msgspec.Raw`).
        parameters: Everything else of the body, as it is. `stream`, and in `stream_options`
            `include_usage`, are ours.
        headers: Sent besides, such as traceparent.
        connect_s: Seconds a new connection may take.
        first_byte_s: Seconds until the answer begins.
        idle_s: Seconds without a byte after which the upstream counts as gone.
        deadline_s: Seconds the whole call may take.
    """

    model: str
    messages: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    connect_s: float = 5.0
    first_byte_s: float = 120.0
    idle_s: float = 60.0
    deadline_s: float = 3_500.0


class ToolPiece(msgspec.Struct, frozen=True):
    """A piece of a tool call; those of one `index` belong together, the first one has its name."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Delta(msgspec.Struct, frozen=True):
    """What one event of the stream adds to one choice.

    Attributes:
        choice: Its number, from 0; more than one only where `n` asked for more.
        reasoning: Thoughts, where an upstream shows them (`reasoning_content` or `reasoning`).
        finish_reason: Set by the event that ends the choice.
        logprobs: As the upstream wrote it, in JSON.
    """

    choice: int = 0
    text: str = ""
    refusal: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolPiece, ...] = ()
    finish_reason: str | None = None
    logprobs: msgspec.Raw | None = None


@dataclass(frozen=True, slots=True)
class ChatTimings:
    """Milliseconds since the request was sent, by our own clock."""

    first_token_ms: float
    total_ms: float


@dataclass(frozen=True, slots=True)
class ChatFinal:
    """How a stream ended well.

    Attributes:
        finish_reason: Of the first choice.
        response_id: The upstream's id of it.
        model: The model's name as the upstream tells it.
        request_id: The upstream's `x-request-id`, for a question to its operators.
    """

    finish_reason: str
    usage: TokenUsage
    timings: ChatTimings
    response_id: str | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    request_id: str | None = None


class ChatChunk(msgspec.Struct, frozen=True):
    """All that came at once, in order; the last chunk has `final` and may have nothing else."""

    deltas: tuple[Delta, ...]
    final: ChatFinal | None = None

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return "".join([delta.text for delta in self.deltas if delta.choice == 0])


@dataclass(frozen=True, slots=True)
class EmbeddingAnswer:
    """Vectors, as the upstream wrote them.

    Attributes:
        data: The list of them, in JSON.
    """

    data: msgspec.Raw
    usage: TokenUsage
    model: str | None = None
