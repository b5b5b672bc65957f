"""`POST /v1/responses`: what may be asked, and the same as a conversation of chat messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from api.openai.chat import ModelName
from api.openai.conversation import check_messages
from api.openai.errors import OpenAIError
from api.openai.fields import Asked, Metadata, User, read, refuse_unsupported
from api.openai.tools import check_response_format, check_tools

__all__ = [
    "ResponseRequest",
    "chat_parameters",
    "conversation_of",
    "messages_of",
    "read_response",
]

_REFUSED = {
    "access_programs": "there are none",
    "background": "ask with 'Overline-On-Disconnect: finish', and read it by its id",
    "background_options": "see 'background'",
    "context_management": "nothing is left out of a conversation here",
    "conversation": "use 'previous_response_id'",
    "image": "answers are text",
    "max_tool_calls": "functions are called by the caller",
    "moderation": "policies of the team look at inputs and answers",
    "prompt": "send the instructions themselves",
}


class ResponseRequest(Asked):
    """A response."""

    model: ModelName = Field(description="A model, a wildcard's match, or a route.")
    input: Any = Field(default=None, description="A text, or items.")
    instructions: str | None = Field(default=None, description="What a system message would say.")
    previous_response_id: Annotated[str, StringConstraints(max_length=128)] | None = Field(
        default=None, description="The conversation goes on from there."
    )
    stream: bool | None = Field(default=None, description="Events as it is written.")
    stream_options: dict[str, Any] | None = Field(
        default=None, description="`include_obfuscation` is accepted; nothing is padded."
    )
    max_output_tokens: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Longest answer, in tokens."
    )
    temperature: float | None = Field(
        default=None, ge=0, le=2, description="0 is greedy; 1 unless said otherwise."
    )
    top_p: float | None = Field(default=None, gt=0, le=1, description="Nucleus, 0 to 1.")
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
    user: User | None = Field(default=None, description="For attribution in the ledger.")
    safety_identifier: User | None = Field(default=None, description="The same, by its newer name.")
    metadata: Metadata | None = Field(default=None, description="Tags for attribution.")
    store: bool | None = Field(default=None, description="`false`: not to be read again.")
    include: list[str] | None = Field(default=None, description="Only the answer's logprobs.")
    truncation: str | None = Field(default=None, description="Only `disabled`.")
    service_tier: str | None = Field(default=None, description="Only `auto` and `default`.")
    prompt_cache_key: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        default=None, description="A hint, passed on to upstreams."
    )
    prompt_cache_retention: str | None = Field(
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
        if getattr(request, name) not in (None, False):
            raise refuse_unsupported(name, why)
    if request.truncation not in (None, "disabled"):
        raise refuse_unsupported("truncation", "only 'disabled' is")
    if request.service_tier not in (None, "auto", "default"):
        raise refuse_unsupported("service_tier", "other tiers have other prices")
    for number, wanted in enumerate(request.include or ()):
        if wanted != "message.output_text.logprobs":
            raise refuse_unsupported(f"include[{number}]", "nothing of that kind is made here")
    for name in ("reasoning", "text"):
        _known(getattr(request, name), name, _KNOWN[name])
    # What the conversion needs is looked at by it; a history is looked at once it is there.
    chat_parameters(request)
    own = messages_of(request.input)
    if request.previous_response_id is None:
        check_messages([*_instructed(request), *own], "input")
    return request


_KNOWN = {"reasoning": frozenset({"effort"}), "text": frozenset({"format", "verbosity"})}


def _known(given: dict[str, Any] | None, param: str, names: frozenset[str]) -> None:
    for name, value in (given or {}).items():
        if name not in names and value is not None:
            raise refuse_unsupported(f"{param}.{name[:80]}", "no engine here can")


def _instructed(request: ResponseRequest) -> list[dict[str, Any]]:
    if request.instructions is None:
        return []
    return [{"role": "system", "content": request.instructions}]


def conversation_of(
    request: ResponseRequest, history: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the messages of a request: instructions, what went before, and its own.

    Raises:
        OpenAIError: Together they are no conversation (400).
    """
    messages = [*_instructed(request), *history, *messages_of(request.input)]
    check_messages(messages, "input")
    return messages


def messages_of(asked: Any) -> list[dict[str, Any]]:
    """Return input items as chat messages.

    Raises:
        OpenAIError: An item cannot be used (400).
    """
    if asked is None:
        raise OpenAIError(
            400,
            "Missing required parameter: 'input'.",
            code="missing_required_parameter",
            param="input",
        )
    if isinstance(asked, str):
        return [{"role": "user", "content": asked}]
    if not isinstance(asked, list):
        raise _wrong("input", "Invalid type for 'input': expected a string or an array.")
    if not asked:
        raise OpenAIError(
            400, "'input' needs at least 1 item(s).", code="empty_array", param="input"
        )
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(asked):
        where = f"input[{number}]"
        if not isinstance(item, dict):
            raise _wrong(where, f"Invalid type for '{where}': expected an object.")
        match item.get("type", "message"):
            case "message":
                messages.append(_message(item, where))
            case "function_call":
                _add_call(messages, item, where)
            case "function_call_output":
                messages.append(
                    {
                        "role": "tool",
                        "tool_call_id": _text(item, "call_id", where),
                        "content": _output(item, where),
                    }
                )
            case _:
                raise refuse_unsupported(
                    f"{where}.type", "messages, function calls and their outputs are"
                )
    return messages


def _message(item: dict[str, Any], where: str) -> dict[str, Any]:
    role, content = item.get("role"), item.get("content")
    for name in item:
        if name not in ("type", "role", "content", "id", "status", "phase"):
            raise OpenAIError(
                400,
                f"Unknown parameter: '{where}.{name[:80]}'.",
                code="unknown_parameter",
                param=f"{where}.{name[:80]}",
            )
    if not isinstance(content, list):
        return {"role": role, "content": content}
    parts = [_part(part, f"{where}.content[{number}]") for number, part in enumerate(content)]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return {"role": role, "content": parts[0]["text"]}
    return {"role": role, "content": parts}


def _part(part: Any, where: str) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise _wrong(where, f"Invalid type for '{where}': expected an object.")
    match part.get("type"):
        case "input_text" | "output_text":
            return {"type": "text", "text": _text(part, "text", where)}
        case "refusal":
            return {"type": "refusal", "refusal": _text(part, "refusal", where)}
        case "input_image" if part.get("file_id") is None:
            image = {"url": _text(part, "image_url", where)}
            if part.get("detail") is not None:
                image["detail"] = part["detail"]
            return {"type": "image_url", "image_url": image}
        case None:
            raise _missing(f"{where}.type")
        case _:
            raise refuse_unsupported(f"{where}.type", "texts and images by URL are")


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    call = {
        "id": _text(item, "call_id", where),
        "type": "function",
        "function": {
            "name": _text(item, "name", where),
            "arguments": _text(item, "arguments", where),
        },
    }
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant":
        last.setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _output(item: dict[str, Any], where: str) -> Any:
    output = item.get("output")
    if isinstance(output, str):
        return output
    if not isinstance(output, list):
        raise _missing(f"{where}.output")
    return [_part(part, f"{where}.output[{number}]") for number, part in enumerate(output)]


def chat_parameters(request: ResponseRequest) -> dict[str, Any]:
    """Return the parameters of a request by the names they have for chat completions.

    Raises:
        OpenAIError: A tool or a format cannot be used (400).
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
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        parameters["tool_choice"] = choice
    check_tools(parameters.get("tools"), parameters.get("tool_choice"))
    form = (request.text or {}).get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        named = {name: form[name] for name in form if name != "type"}
        form = {"type": "json_schema", "json_schema": named}
    check_response_format(form, "text.format")
    if form is not None and form.get("type") != "text":
        parameters["response_format"] = form
    return parameters


def _tool(tool: Any, number: int) -> Any:
    where = f"tools[{number}]"
    if not isinstance(tool, dict):
        raise _wrong(where, f"Invalid type for '{where}': expected an object.")
    if tool.get("type") != "function":
        raise refuse_unsupported(f"{where}.type", "only functions are")
    named = ("name", "description", "parameters", "strict")
    return {
        "type": "function",
        "function": {name: tool[name] for name in named if tool.get(name) is not None},
    }


def _text(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if value is None:
        raise _missing(f"{where}.{name}")
    if not isinstance(value, str):
        raise _wrong(f"{where}.{name}", f"Invalid type for '{where}.{name}': expected a string.")
    return value


def _wrong(param: str, message: str) -> OpenAIError:
    return OpenAIError(400, message, code="invalid_type", param=param)


def _missing(param: str) -> OpenAIError:
    return OpenAIError(
        400,
        f"Missing required parameter: '{param}'.",
        code="missing_required_parameter",
        param=param,
    )
