"""`POST /v1/completions`: a text to go on with, without a chat template around it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.openai.chat import ModelName, StreamOptions
from api.openai.errors import OpenAIError
from api.openai.fields import Asked, LogitBias, Stop, User, read, refuse_unsupported

__all__ = ["CompletionRequest", "read_completion"]


class CompletionRequest(Asked):
    """A completion of a text."""

    model: ModelName = Field(description="A model that completes texts, or a route to one.")
    prompt: Any = Field(default=None, description="The text.")
    stream: bool | None = Field(default=None, description="Server-sent events as it is written.")
    stream_options: StreamOptions | None = Field(default=None, description="See there.")
    max_tokens: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Longest answer, in tokens; 16 by default."
    )
    temperature: float | None = Field(
        default=None, ge=0, le=2, description="0 is greedy; 1 unless said otherwise."
    )
    top_p: float | None = Field(default=None, gt=0, le=1, description="Nucleus, 0 to 1.")
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
    n: int | None = Field(default=None, ge=1, le=128, description="Only 1.")
    best_of: int | None = Field(default=None, ge=1, le=20, description="Only 1.")
    echo: bool | None = Field(default=None, description="Whether the prompt comes first.")
    logprobs: int | None = Field(default=None, ge=0, le=5, description="Where the engine can.")
    logit_bias: LogitBias | None = Field(default=None, description="Where the engine can.")
    suffix: str | None = Field(default=None, description="Refused.")
    user: User | None = Field(default=None, description="For attribution in the ledger.")
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


def read_completion(document: Any) -> CompletionRequest:
    """Read a parsed body.

    Raises:
        OpenAIError: It cannot be used (400).
    """
    request = read(CompletionRequest, document)
    prompt = request.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
        request = request.model_copy(update={"prompt": prompt})
    if prompt is None:
        raise OpenAIError(
            400,
            "Missing required parameter: 'prompt'.",
            code="missing_required_parameter",
            param="prompt",
        )
    if isinstance(prompt, list):
        raise refuse_unsupported("prompt", "one text a request; token ids are not taken")
    if not isinstance(prompt, str):
        raise OpenAIError(
            400,
            "Invalid type for 'prompt': expected a string.",
            code="invalid_type",
            param="prompt",
        )
    if not prompt:
        raise OpenAIError(
            400, "'prompt' must not be empty.", code="string_below_min_length", param="prompt"
        )
    if request.suffix is not None:
        raise refuse_unsupported("suffix", "nothing is inserted between two texts")
    for name in ("n", "best_of"):
        if (getattr(request, name) or 1) > 1:
            raise refuse_unsupported(name, "one completion a request")
    if request.stream_options is not None and not request.stream:
        raise OpenAIError(
            400,
            "'stream_options' needs 'stream' to be true.",
            code="invalid_value",
            param="stream_options",
        )
    return request
