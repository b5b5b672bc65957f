"""The messages of a chat request: looked at closely, and then passed on exactly as they came.

Nothing is rewritten here: an upstream that is strict about `content: null` beside tool calls gets
what the client wrote.
"""

from __future__ import annotations

from typing import Any

from api.openai.errors import OpenAIError

__all__ = ["MOST_MESSAGES", "check_messages"]

MOST_MESSAGES = 4096
_ROLES = ("system", "developer", "user", "assistant", "tool")
_FIELDS = {
    "system": frozenset({"role", "content", "name"}),
    "developer": frozenset({"role", "content", "name"}),
    "user": frozenset({"role", "content", "name"}),
    "assistant": frozenset(
        {"role", "content", "name", "refusal", "tool_calls", "function_call", "audio"}
    ),
    "tool": frozenset({"role", "content", "tool_call_id", "name"}),
}
_PARTS = {
    "system": frozenset({"text"}),
    "developer": frozenset({"text"}),
    "user": frozenset({"text", "image_url"}),
    "assistant": frozenset({"text", "refusal"}),
    "tool": frozenset({"text"}),
}


def check_messages(messages: Any, param: str = "messages") -> None:
    """Look at the messages of a request.

    Raises:
        OpenAIError: One of them cannot be used (400), by its place.
    """
    if not isinstance(messages, list):
        raise _wrong(param, "invalid_type", f"Invalid type for '{param}': expected an array.")
    if not messages:
        raise _wrong(param, "empty_array", f"'{param}' needs at least 1 item(s).")
    if len(messages) > MOST_MESSAGES:
        raise _wrong(
            param,
            "array_above_max_length",
            f"'{param}' is too long: at most {MOST_MESSAGES} items are allowed.",
        )
    # Calls of the last assistant turn that no message has answered yet.
    owed: list[str] = []
    asked_at = ""
    for number, message in enumerate(messages):
        where = f"{param}[{number}]"
        role = _check_message(message, where)
        if role == "tool":
            answered = message["tool_call_id"]
            if answered not in owed:
                raise _wrong(
                    f"{where}.tool_call_id",
                    "invalid_value",
                    f"'{where}': a message of role 'tool' must answer a call in the 'tool_calls' "
                    "of the assistant message before it.",
                )
            owed.remove(answered)
            continue
        if owed:
            raise _wrong(
                asked_at,
                "invalid_value",
                f"'{asked_at}': each tool call must be answered by a message of role 'tool' with "
                "its 'tool_call_id' before the conversation goes on.",
            )
        if role == "assistant":
            owed = [call["id"] for call in message.get("tool_calls") or ()]
            asked_at = f"{where}.tool_calls"
    if owed:
        raise _wrong(
            asked_at,
            "invalid_value",
            f"'{asked_at}': each tool call must be answered by a message of role 'tool' with its "
            "'tool_call_id'.",
        )


def _check_message(message: Any, where: str) -> str:
    if not isinstance(message, dict):
        raise _wrong(where, "invalid_type", f"Invalid type for '{where}': expected an object.")
    if "role" not in message:
        raise _missing(f"{where}.role")
    role = message["role"]
    if role not in _ROLES:
        raise _wrong(
            f"{where}.role",
            "invalid_value",
            f"Invalid value for '{where}.role': expected one of {', '.join(_ROLES)}.",
        )
    for name in message:
        if name not in _FIELDS[role]:
            param = f"{where}.{name[:80]}"
            raise _wrong(param, "unknown_parameter", f"Unknown parameter: '{param}'.")
    for name in ("name", "refusal", "tool_call_id"):
        value = message.get(name)
        if value is not None and not isinstance(value, str):
            raise _type(f"{where}.{name}", "a string")
    for name in ("function_call", "audio"):
        if message.get(name) is not None:
            raise OpenAIError(
                400,
                f"'{where}.{name}' is not supported; use 'tool_calls'.",
                code="unsupported_parameter",
                param=f"{where}.{name}",
            )
    if role == "tool" and not message.get("tool_call_id"):
        raise _missing(f"{where}.tool_call_id")
    if role == "assistant":
        _check_tool_calls(message.get("tool_calls"), where)
    _check_content(message, role, where)
    return str(role)


def _check_content(message: dict[str, Any], role: str, where: str) -> None:
    content = message.get("content")
    param = f"{where}.content"
    if content is None:
        if role == "assistant" and (message.get("tool_calls") or message.get("refusal")):
            return
        if "content" not in message:
            raise _missing(param)
        raise _type(param, "a string or an array of parts")
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise _type(param, "a string or an array of parts")
    if not content:
        raise _wrong(param, "empty_array", f"'{param}' needs at least 1 item(s).")
    for number, part in enumerate(content):
        _check_part(part, role, f"{param}[{number}]")


def _check_part(part: Any, role: str, where: str) -> None:
    if not isinstance(part, dict):
        raise _type(where, "an object")
    kind = part.get("type")
    if kind is None:
        raise _missing(f"{where}.type")
    if kind not in _PARTS[role]:
        raise _wrong(
            f"{where}.type",
            "invalid_value",
            f"Invalid value for '{where}.type': expected one of "
            f"{', '.join(sorted(_PARTS[role]))} for this role.",
        )
    value = part.get(kind)
    if kind == "image_url":
        if not isinstance(value, dict) or not isinstance(value.get("url"), str):
            raise _type(f"{where}.image_url.url", "a string")
    elif not isinstance(value, str):
        raise _missing(f"{where}.{kind}") if value is None else _type(f"{where}.{kind}", "a string")


def _check_tool_calls(calls: Any, where: str) -> None:
    param = f"{where}.tool_calls"
    if calls is None:
        return
    if not isinstance(calls, list):
        raise _type(param, "an array")
    if not calls:
        raise _wrong(param, "empty_array", f"'{param}' needs at least 1 item(s).")
    seen: set[str] = set()
    for number, call in enumerate(calls):
        place = f"{param}[{number}]"
        if not isinstance(call, dict):
            raise _type(place, "an object")
        if not isinstance(call.get("id"), str) or not call["id"]:
            raise _missing(f"{place}.id")
        if call["id"] in seen:
            raise _wrong(f"{place}.id", "invalid_value", f"'{place}.id' stands there twice.")
        seen.add(call["id"])
        if call.get("type") != "function":
            raise _wrong(
                f"{place}.type",
                "invalid_value",
                f"Invalid value for '{place}.type': expected 'function'.",
            )
        function = call.get("function")
        if not isinstance(function, dict):
            raise _missing(f"{place}.function")
        for name in ("name", "arguments"):
            if not isinstance(function.get(name), str):
                raise _missing(f"{place}.function.{name}")


def _wrong(param: str, code: str, message: str) -> OpenAIError:
    return OpenAIError(400, message, code=code, param=param)


def _missing(param: str) -> OpenAIError:
    return _wrong(param, "missing_required_parameter", f"Missing required parameter: '{param}'.")


def _type(param: str, expected: str) -> OpenAIError:
    return _wrong(param, "invalid_type", f"Invalid type for '{param}': expected {expected}.")
