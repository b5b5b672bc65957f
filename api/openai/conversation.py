"""The messages of a chat request: looked at closely, and then passed on exactly as they came.

Nothing is rewritten here: an upstream that is strict about `content: null` beside tool calls gets
what the client wrote.
"""

from __future__ import annotations

from typing import Any

from api.openai.fields import (
    check_choice,
    check_names,
    check_type,
    missing,
    refuse_unsupported,
    wrong,
    wrong_type,
)

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
_DETAILS = ("auto", "low", "high", "original")
# With the number that a call has in a stream: clients who add up its pieces send it back.
_CALL = ("id", "type", "function", "index")


def check_messages(messages: Any, param: str = "messages") -> None:
    """Look at the messages of a request.

    Raises:
        OpenAIError: One of them cannot be used (400), by its place.
    """
    if not isinstance(messages, list):
        raise wrong_type(param, "an array")
    if not messages:
        raise wrong(param, f"'{param}' needs at least 1 item(s).", "empty_array")
    if len(messages) > MOST_MESSAGES:
        raise wrong(
            param,
            f"'{param}' is too long: at most {MOST_MESSAGES} items are allowed.",
            "array_above_max_length",
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
                raise wrong(
                    f"{where}.tool_call_id",
                    f"'{where}': a message of role 'tool' must answer a call in the 'tool_calls' "
                    "of the assistant message before it.",
                )
            owed.remove(answered)
            continue
        if owed:
            raise wrong(
                asked_at,
                f"'{asked_at}': each tool call must be answered by a message of role 'tool' with "
                "its 'tool_call_id' before the conversation goes on.",
            )
        if role == "assistant":
            owed = [call["id"] for call in message.get("tool_calls") or ()]
            asked_at = f"{where}.tool_calls"
    if owed:
        raise wrong(
            asked_at,
            f"'{asked_at}': each tool call must be answered by a message of role 'tool' with its "
            "'tool_call_id'.",
        )


def _check_message(message: Any, where: str) -> str:
    if not isinstance(message, dict):
        raise wrong_type(where, "an object")
    if "role" not in message:
        raise missing(f"{where}.role")
    role = message["role"]
    if role not in _ROLES:
        raise wrong(
            f"{where}.role",
            f"Invalid value for '{where}.role': expected one of {', '.join(_ROLES)}.",
        )
    check_names(message, _FIELDS[role], where)
    for name in ("name", "refusal", "tool_call_id"):
        check_type(message, name, str, where)
    for name in ("function_call", "audio"):
        if message.get(name) is not None:
            raise refuse_unsupported(f"{where}.{name}", "use 'tool_calls'")
    if role == "tool" and not message.get("tool_call_id"):
        raise missing(f"{where}.tool_call_id")
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
            raise missing(param)
        raise wrong_type(param, "a string or an array of parts")
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise wrong_type(param, "a string or an array of parts")
    if not content:
        raise wrong(param, f"'{param}' needs at least 1 item(s).", "empty_array")
    for number, part in enumerate(content):
        _check_part(part, role, f"{param}[{number}]")


def _check_part(part: Any, role: str, where: str) -> None:
    if not isinstance(part, dict):
        raise wrong_type(where, "an object")
    kind = part.get("type")
    if kind is None:
        raise missing(f"{where}.type")
    if not isinstance(kind, str) or kind not in _PARTS[role]:
        raise wrong(
            f"{where}.type",
            f"Invalid value for '{where}.type': expected one of "
            f"{', '.join(sorted(_PARTS[role]))} for this role.",
        )
    check_names(part, ("type", kind), where)
    value = part.get(kind)
    if kind == "image_url":
        if not isinstance(value, dict) or not isinstance(value.get("url"), str):
            raise wrong_type(f"{where}.image_url.url", "a string")
        check_names(value, ("url", "detail"), f"{where}.image_url")
        check_choice(value, "detail", _DETAILS, f"{where}.image_url")
    elif not isinstance(value, str):
        raise (
            missing(f"{where}.{kind}")
            if value is None
            else wrong_type(f"{where}.{kind}", "a string")
        )


def _check_tool_calls(calls: Any, where: str) -> None:
    param = f"{where}.tool_calls"
    if calls is None:
        return
    if not isinstance(calls, list):
        raise wrong_type(param, "an array")
    if not calls:
        raise wrong(param, f"'{param}' needs at least 1 item(s).", "empty_array")
    seen: set[str] = set()
    for number, call in enumerate(calls):
        place = f"{param}[{number}]"
        if not isinstance(call, dict):
            raise wrong_type(place, "an object")
        check_names(call, _CALL, place)
        if not isinstance(call.get("id"), str) or not call["id"]:
            raise missing(f"{place}.id")
        if call["id"] in seen:
            raise wrong(f"{place}.id", f"'{place}.id' stands there twice.")
        seen.add(call["id"])
        if call.get("type") != "function":
            raise wrong(f"{place}.type", f"Invalid value for '{place}.type': expected 'function'.")
        function = call.get("function")
        if not isinstance(function, dict):
            raise missing(f"{place}.function")
        check_names(function, ("name", "arguments"), f"{place}.function")
        for name in ("name", "arguments"):
            if not isinstance(function.get(name), str):
                raise missing(f"{place}.function.{name}")
