"""`POST /v1/responses`: what may be asked, and the same as a conversation of chat messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, get_args

from pydantic import Field, StringConstraints

from api.openai.fields import (
    Metadata,
    User,
    check_choice,
    check_names,
    read,
    refuse_unsupported,
    wrong_type,
)
from api.openai.sampling import (
    CacheRetention,
    Effort,
    Generating,
    ObfuscationOptions,
    Verbosity,
    check_stream_options,
)
from api.openai.tools import check_response_format, check_tools

__all__ = ["ResponseRequest", "chat_parameters", "check_include", "read_response"]

_REFUSED = {
    "access_programs": "there are none",
    "background": "ask with 'X-Overline-On-Disconnect: finish', and read it by its id",
    "background_options": "see 'background'",
    "context_management": "nothing is left out of a conversation here",
    "conversation": "use 'previous_response_id'",
    "image": "answers are text",
    "max_tool_calls": "functions are called by the caller",
    "moderation": "policies of the team look at inputs and answers",
    "prompt": "send the instructions themselves",
}


class ResponseRequest(Generating):
    """A response."""

    input: Any = Field(default=None, description="A text, or items.")
    instructions: str | None = Field(default=None, description="What a system message would say.")
    previous_response_id: Annotated[str, StringConstraints(max_length=128)] | None = Field(
        default=None, description="The conversation goes on from there."
    )
    stream_options: ObfuscationOptions | None = Field(default=None, description="See there.")
    max_output_tokens: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Longest answer, in tokens."
    )
    top_logprobs: int | None = Field(default=None, ge=0, le=20, description="Where the engine can.")
    tools: list[Any] | None = Field(default=None, description="Functions the model may call.")
    tool_choice: Any = Field(
        default=None, description="`none`, `auto`, `required`, or one function."
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="Whether several calls may come at once."
    )
    text: dict[str, Any] | None = Field(
        default=None, description="`format`: the form of the answer; `verbosity`."
    )
    reasoning: dict[str, Any] | None = Field(default=None, description="`effort`.")
    safety_identifier: User | None = Field(default=None, description="The same, by its newer name.")
    metadata: Metadata | None = Field(default=None, description="Tags for attribution.")
    store: bool | None = Field(default=None, description="`false`: not to be read again.")
    include: list[str] | None = Field(default=None, description="Only the answer's logprobs.")
    truncation: str | None = Field(default=None, description="Only `disabled`.")
    service_tier: str | None = Field(default=None, description="Only `auto` and `default`.")
    prompt_cache_key: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        default=None, description="A hint, passed on to upstreams."
    )
    prompt_cache_retention: CacheRetention | None = Field(
        default=None, description="A hint, passed on to upstreams."
    )
    prompt_cache_options: dict[str, Any] | None = Field(
        default=None, description="A hint, passed on to upstreams."
    )
    access_programs: Any = Field(default=None, description="Refused.")
    background: bool | None = Field(default=None, description="Only `false`.")
    background_options: Any = Field(default=None, description="Refused.")
    context_management: Any = Field(default=None, description="Refused.")
    conversation: Any = Field(default=None, description="Refused: use `previous_response_id`.")
    image: Any = Field(default=None, description="Refused.")
    max_tool_calls: Any = Field(default=None, description="Refused.")
    moderation: Any = Field(default=None, description="Refused.")
    prompt: Any = Field(default=None, description="Refused.")


def read_response(document: Any) -> ResponseRequest:
    """Read a parsed body.

    Raises:
        OpenAIError: It cannot be used (400).
    """
    request = read(ResponseRequest, document)
    for name, why in _REFUSED.items():
        value = getattr(request, name)
        if value is not None and value is not False:
            raise refuse_unsupported(name, why)
    if request.truncation not in (None, "disabled"):
        raise refuse_unsupported("truncation", "only 'disabled' is")
    if request.service_tier not in (None, "auto", "default"):
        raise refuse_unsupported("service_tier", "other tiers have other prices")
    check_include(request.include or ())
    check_stream_options(request.stream, request.stream_options)
    for name, (known, choice, choices) in _OBJECTS.items():
        given = getattr(request, name) or {}
        for each, value in given.items():
            if each not in known and value is not None:
                raise refuse_unsupported(f"{name}.{each[:80]}", "no engine here can")
        check_choice(given, choice, choices, name)
    return request


def check_include(include: Sequence[str]) -> None:
    """Look at what an answer is to have besides.

    Raises:
        OpenAIError: It is not made here (400).
    """
    for number, wanted in enumerate(include):
        if wanted != "message.output_text.logprobs":
            raise refuse_unsupported(f"include[{number}]", "nothing of that kind is made here")


#: Of fields that are objects: what they may have, and which of it is one of some words.
_OBJECTS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "reasoning": (("effort",), "effort", get_args(Effort)),
    "text": (("format", "verbosity"), "verbosity", get_args(Verbosity)),
}


def chat_parameters(request: ResponseRequest) -> dict[str, Any]:
    """Return the parameters of a request by the names they have for chat completions.

    Raises:
        OpenAIError: A tool or a format cannot be used (400), by those names.
    """
    parameters: dict[str, Any] = {}
    for name, value in (
        ("max_completion_tokens", request.max_output_tokens),
        ("temperature", request.temperature),
        ("top_p", request.top_p),
        ("prompt_cache_key", request.prompt_cache_key),
        ("prompt_cache_retention", request.prompt_cache_retention),
        ("prompt_cache_options", request.prompt_cache_options),
        ("reasoning_effort", (request.reasoning or {}).get("effort")),
        ("verbosity", (request.text or {}).get("verbosity")),
    ):
        if value is not None:
            parameters[name] = value
    if request.include or request.top_logprobs:
        parameters["logprobs"] = True
        if request.top_logprobs:
            parameters["top_logprobs"] = request.top_logprobs
    if request.tools:
        parameters["tools"] = [_tool(tool, n) for n, tool in enumerate(request.tools)]
        if request.parallel_tool_calls is not None:
            parameters["parallel_tool_calls"] = request.parallel_tool_calls
    choice = request.tool_choice
    if choice is not None and (request.tools or choice not in ("auto", "none")):
        if isinstance(choice, dict) and choice.get("type") == "function":
            check_names(choice, ("type", "name"), "tool_choice")
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        parameters["tool_choice"] = choice
    check_tools(parameters.get("tools"), parameters.get("tool_choice"))
    form = (request.text or {}).get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        named = {name: form[name] for name in form if name != "type"}
        form = {"type": "json_schema", "json_schema": named}
    check_response_format(form)
    if form is not None and form["type"] != "text":
        parameters["response_format"] = form
    return parameters


def _tool(tool: Any, number: int) -> Any:
    where = f"tools[{number}]"
    if not isinstance(tool, dict):
        raise wrong_type(where, "an object")
    if tool.get("type") != "function":
        raise refuse_unsupported(f"{where}.type", "only functions are")
    named = ("name", "description", "parameters", "strict")
    check_names(tool, ("type", *named), where)
    return {
        "type": "function",
        "function": {name: tool[name] for name in named if tool.get(name) is not None},
    }
