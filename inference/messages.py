"""What the client takes and gives: one generation, its chunks, its end, the meter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inference.prompt import Sampling


@dataclass(frozen=True)
class GenerationRequest:
    """One attempt of one generation.

    Attributes:
        triton_model: Name of the model under Triton.
        request_id: Unique per attempt; the engine's meter counts by it.
        input_ids: The prompt.
        generated_ids: What earlier attempts of the same generation produced. They follow the
            prompt, count against max_tokens, and are not sent again.
        json_schema: JSON Schema text the output must obey.
        grammar: GBNF text the output must obey.
        lora_name: Adapter, by the name the deployment gave it.
        deadline_s: Seconds the whole call may take.
        idle_s: Seconds without any chunk after which the engine counts as gone.
        metadata: gRPC metadata to send, such as traceparent; names in lower case.
    """

    triton_model: str
    request_id: str
    input_ids: list[int]
    generated_ids: list[int] = field(default_factory=list)
    sampling: Sampling = field(default_factory=Sampling)
    json_schema: str | None = None
    grammar: str | None = None
    lora_name: str | None = None
    deadline_s: float = 600.0
    idle_s: float = 30.0
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Timings:
    """The engine's own clock, in milliseconds from when the request reached it.

    Attributes:
        queue_ms: Waiting for a free slot.
        first_token_ms: Until the first token, waiting included.
        total_ms: Until the end.
    """

    queue_ms: float
    first_token_ms: float
    total_ms: float


@dataclass(frozen=True)
class Final:
    """How a generation ended.

    Attributes:
        finish_reason: "stop", "length" or "cancelled".
        stop_reason: The stop string or, in decimal, the stop token that ended it; None for the
            model's own end.
        prompt_tokens: Tokens this attempt took in: the prompt and generated_ids.
        completion_tokens: Tokens this attempt produced.
        cached_tokens: How many of prompt_tokens the engine had from earlier requests.
    """

    finish_reason: str
    stop_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    timings: Timings

    @property
    def token_ms(self) -> float:
        """Mean milliseconds per token after the first; 0 when there was only one."""
        after_first = self.completion_tokens - 1
        if after_first <= 0:
            return 0.0
        return (self.timings.total_ms - self.timings.first_token_ms) / after_first


@dataclass(frozen=True)
class GenerationChunk:
    """Tokens and text that came together.

    `text` never splits a character; all texts joined are the whole text. Tokens may come with
    no text (half a character, a possible stop string), and the last chunk may have neither.
    """

    token_ids: list[int]
    text: str
    final: Final | None = None


@dataclass(frozen=True)
class MeterReading:
    """The engine's durable count for one request id, or for all of a model together.

    Attributes:
        state: running, finished, cancelled, failed, or lost (its process died); "" for totals.
        requests: How many attempts the counts sum over.
    """

    state: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    requests: int
