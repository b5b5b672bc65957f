"""`POST /v1/chat/completions`: what may be asked. Every documented field is known by name."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from api.openai.conversation import check_messages
from api.openai.fields import Metadata, User, read, refuse_unsupported, wrong
from api.openai.sampling import CacheRetention, Effort, Sampled, Verbosity
from api.openai.tools import check_response_format, check_tools

__all__ = ["ChatRequest", "read_chat"]


class ChatRequest(Sampled):
    """A chat completion."""

    messages: list[Any] = Field(description="The conversation, as OpenAI writes it.")
    max_completion_tokens: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Longest answer, in tokens."
    )
    max_tokens: int | None = Field(
        default=None, ge=1, le=1_000_000, description="The same in tokens, by its older name."
    )
    logprobs: bool | None = Field(default=None, description="Where the engine can.")
    top_logprobs: int | None = Field(
        default=None, ge=0, le=20, description="Needs `logprobs`; where the engine can."
    )
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
    safety_identifier: User | None = Field(default=None, description="The same, by its newer name.")
    metadata: Metadata | None = Field(default=None, description="Tags for attribution.")
    store: bool | None = Field(default=None, description="`false`: not to be read again by its id.")
    reasoning_effort: Effort | None = Field(default=None, description="Where the engine can.")
    verbosity: Verbosity | None = Field(default=None, description="Where the engine can.")
    prediction: dict[str, Any] | None = Field(default=None, description="Where the engine can.")
    prompt_cache_key: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        default=None, description="A hint, passed on to upstreams."
    )
    prompt_cache_retention: CacheRetention | None = Field(
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

    @property
    def longest(self) -> int | None:
        """Longest answer that was asked for, in tokens."""
        return self.max_completion_tokens or self.max_tokens


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
        raise wrong("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
    if request.parallel_tool_calls is not None and not request.tools:
        raise wrong("parallel_tool_calls", "'parallel_tool_calls' needs 'tools'.")
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise wrong("max_tokens", "Give 'max_completion_tokens' or 'max_tokens', not both.")
    request.check(request.longest)
    return request
