"""`POST /v1/chat/completions`: what may be asked. Every documented field is known by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from api.openai.conversation import check_messages
from api.openai.errors import OpenAIError
from api.openai.fields import Asked, LogitBias, Metadata, Stop, User, read, refuse_unsupported
from api.openai.tools import check_response_format, check_tools

__all__ = ["ChatRequest", "StreamOptions", "read_chat"]

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class StreamOptions(Asked):
    """How a stream is written."""

    include_usage: bool | None = Field(
        default=None, description="One more chunk, before the last line, with the usage."
    )
    include_obfuscation: bool | None = Field(
        default=None, description="Accepted; chunks are never padded."
    )


class ChatRequest(Asked):
    """A chat completion."""

    model: ModelName = Field(description="A model, a wildcard's match, or a route.")
    messages: list[Any] = Field(description="The conversation, as OpenAI writes it.")
    stream: bool | None = Field(default=None, description="Server-sent events as it is written.")
    stream_options: StreamOptions | None = Field(default=None, description="See there.")
    max_completion_tokens: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Longest answer, in tokens."
    )
    max_tokens: int | None = Field(
        default=None, ge=1, le=1_000_000, description="The same in tokens, by its older name."
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
    n: int | None = Field(
        default=None, ge=1, le=128, description="Answers; more than 1 where the engine can."
    )
    logprobs: bool | None = Field(default=None, description="Where the engine can.")
    top_logprobs: int | None = Field(
        default=None, ge=0, le=20, description="Needs `logprobs`; where the engine can."
    )
    logit_bias: LogitBias | None = Field(default=None, description="Where the engine can.")
    tools: list[Any] | None = Field(default=None, description="Functions the model may call.")
    tool_choice: Any = Field(
        default=None, description="`none`, `auto`, `required`, or one function."
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="Whether several calls may come at once."
    )
    response_format: Any = Field(
        default=None, description="`text`, `json_object` or `json_schema`."
    )
    user: User | None = Field(default=None, description="For attribution in the ledger.")
    safety_identifier: User | None = Field(default=None, description="The same, by its newer name.")
    metadata: Metadata | None = Field(default=None, description="Tags for attribution.")
    store: bool | None = Field(default=None, description="`false`: not to be read again by its id.")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        Field(default=None, description="Where the engine can.")
    )
    verbosity: Literal["low", "medium", "high"] | None = Field(
        default=None, description="Where the engine can."
    )
    prediction: dict[str, Any] | None = Field(default=None, description="Where the engine can.")
    prompt_cache_key: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        default=None, description="A hint, passed on to upstreams."
    )
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = Field(
        default=None, description="A hint, passed on to upstreams."
    )
    prompt_cache_options: dict[str, Any] | None = Field(
        default=None, description="A hint, passed on to upstreams."
    )
    modalities: list[str] | None = Field(default=None, description="Only `text`.")
    service_tier: str | None = Field(default=None, description="Only `auto` and `default`.")
    audio: Any = Field(default=None, description="Refused.")
    function_call: Any = Field(default=None, description="Refused: use `tool_choice`.")
    functions: Any = Field(default=None, description="Refused: use `tools`.")
    moderation: Any = Field(default=None, description="Refused.")
    web_search_options: Any = Field(default=None, description="Refused.")
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
    def longest(self) -> int | None:
        """Longest answer that was asked for, in tokens."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


_REFUSED = {
    "audio": "answers are text",
    "functions": "use 'tools'",
    "function_call": "use 'tool_choice'",
    "moderation": "policies of the team look at inputs and answers",
    "web_search_options": "give a function of your own in 'tools'",
}


def read_chat(document: Any) -> ChatRequest:
    """Read a parsed body.

    Raises:
        OpenAIError: It cannot be used (400), by the name of the first thing that is wrong.
    """
    request = read(ChatRequest, document)
    check_messages(document["messages"])
    check_tools(request.tools, request.tool_choice)
    check_response_format(request.response_format)
    for name, why in _REFUSED.items():
        if getattr(request, name) is not None:
            raise refuse_unsupported(name, why)
    if request.modalities not in (None, ["text"]):
        raise refuse_unsupported("modalities", "answers are text")
    if request.service_tier not in (None, "auto", "default"):
        raise refuse_unsupported("service_tier", "other tiers have other prices")
    if request.top_logprobs is not None and not request.logprobs:
        raise _contradiction("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
    if request.stream_options is not None and not request.stream:
        raise _contradiction("stream_options", "'stream_options' needs 'stream' to be true.")
    if request.parallel_tool_calls is not None and not request.tools:
        raise _contradiction("parallel_tool_calls", "'parallel_tool_calls' needs 'tools'.")
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise _contradiction(
            "max_tokens", "Give 'max_completion_tokens' or 'max_tokens', not both."
        )
    if request.min_tokens and request.longest and request.min_tokens > request.longest:
        raise _contradiction("min_tokens", "'min_tokens' is larger than the longest answer.")
    return request


def _contradiction(param: str, message: str) -> OpenAIError:
    return OpenAIError(400, message, code="invalid_value", param=param)
