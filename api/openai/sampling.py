"""What every request may say of how its answer is made, and how a stream of it is written."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from api.openai.fields import Asked, LogitBias, Stop, User, wrong

__all__ = [
    "CacheRetention",
    "Effort",
    "Generating",
    "ModelName",
    "ObfuscationOptions",
    "Sampled",
    "StreamOptions",
    "Verbosity",
    "check_stream_options",
]

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]
CacheRetention = Literal["in_memory", "in-memory", "24h"]


class ObfuscationOptions(Asked):
    """How a stream is written."""

    include_obfuscation: bool | None = Field(
        default=None, description="Accepted; chunks are never padded."
    )


class StreamOptions(ObfuscationOptions):
    """How a stream of chunks is written."""

    include_usage: bool | None = Field(
        default=None, description="One more chunk, before the last line, with the usage."
    )


class Generating(Asked):
    """A request that a model answers in words."""

    model: ModelName = Field(description="A model, a wildcard's match, or a route.")
    stream: bool | None = Field(default=None, description="Server-sent events as it is written.")
    temperature: float | None = Field(
        default=None, ge=0, le=2, description="0 is greedy; 1 unless said otherwise."
    )
    top_p: float | None = Field(
        default=None, ge=0, le=1, description="Nucleus; 0 leaves only the likeliest token."
    )
    user: User | None = Field(default=None, description="For attribution in the ledger.")


class Sampled(Generating):
    """A request whose answer comes in choices and chunks."""

    stream_options: StreamOptions | None = Field(default=None, description="See there.")
    frequency_penalty: float | None = Field(
        default=None, ge=-2, le=2, description="Additive penalty by count."
    )
    presence_penalty: float | None = Field(
        default=None, ge=-2, le=2, description="Additive penalty of seen tokens."
    )
    stop: Stop | None = Field(default=None, description="Up to 4 texts that end the answer.")
    seed: int | None = Field(
        default=None, ge=-(2**63), lt=2**63, description="Seed of the sampler."
    )
    n: int | None = Field(
        default=None, ge=1, le=128, description="Answers; more than 1 where the engine can."
    )
    logit_bias: LogitBias | None = Field(default=None, description="Where the engine can.")
    # Not OpenAI's, and known to engines behind compatible servers.
    top_k: int | None = Field(default=None, ge=0, le=1000, description="Candidates; 0 keeps all.")
    min_tokens: int | None = Field(
        default=None, ge=0, le=32_768, description="Shortest answer, in tokens."
    )
    repetition_penalty: float | None = Field(
        default=None, ge=0.5, le=2, description="Multiplicative penalty of seen tokens."
    )
    ignore_eos: bool | None = Field(default=None, description="Go on to the longest answer.")

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def check(self, longest: int | None) -> None:
        """Look at what must fit together.

        Args:
            longest: Longest answer that was asked for, in tokens.

        Raises:
            OpenAIError: It does not (400).
        """
        check_stream_options(self.stream, self.stream_options)
        if self.min_tokens and longest and self.min_tokens > longest:
            raise wrong("min_tokens", "'min_tokens' is larger than the longest answer.")


def check_stream_options(stream: bool | None, options: ObfuscationOptions | None) -> None:
    """Look at whether there is a stream that they are for.

    Raises:
        OpenAIError: There is none (400).
    """
    if options is not None and not stream:
        raise wrong("stream_options", "'stream_options' needs 'stream' to be true.")
