"""Tools, the choice among them, and the form an answer must have, as chat requests say it."""

from __future__ import annotations

import re
from typing import Any

from api.openai.errors import OpenAIError

__all__ = ["check_response_format", "check_tools"]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MOST_TOOLS = 128
_MODES = ("none", "auto", "required")


def check_tools(tools: Any, choice: Any) -> None:
    """Look at `tools` and `tool_choice`.

    Raises:
        OpenAIError: One of them cannot be used (400).
    """
    names = _check_list(tools)
    if choice is None:
        return
    if not names:
        raise _wrong("tool_choice", "'tool_choice' is only allowed when 'tools' are given.")
    if isinstance(choice, str):
        if choice not in _MODES:
            raise _wrong("tool_choice", f"'tool_choice' must be one of {', '.join(_MODES)}.")
        return
    if not isinstance(choice, dict):
        raise _wrong("tool_choice", "'tool_choice' must be a string or an object.", "invalid_type")
    if choice.get("type") != "function":
        raise OpenAIError(
            400,
            "'tool_choice.type' must be 'function'; allowed and custom tools are not supported.",
            code="unsupported_parameter",
            param="tool_choice.type",
        )
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _missing("tool_choice.function.name")
    if name not in names:
        raise _wrong(
            "tool_choice.function.name", "'tool_choice' names a function that is not in 'tools'."
        )


def _check_list(tools: Any) -> set[str]:
    if tools is None:
        return set()
    if not isinstance(tools, list):
        raise _wrong("tools", "Invalid type for 'tools': expected an array.", "invalid_type")
    if not tools:
        raise _wrong("tools", "'tools' needs at least 1 item(s).", "empty_array")
    if len(tools) > _MOST_TOOLS:
        raise _wrong(
            "tools",
            f"'tools' is too long: at most {_MOST_TOOLS} items are allowed.",
            "array_above_max_length",
        )
    names: set[str] = set()
    for number, tool in enumerate(tools):
        where = f"tools[{number}]"
        if not isinstance(tool, dict):
            raise _wrong(where, f"Invalid type for '{where}': expected an object.", "invalid_type")
        if "type" not in tool:
            raise _missing(f"{where}.type")
        if tool["type"] != "function":
            raise OpenAIError(
                400,
                f"'{where}.type' is not supported: only functions are.",
                code="unsupported_parameter",
                param=f"{where}.type",
            )
        function = tool.get("function")
        if not isinstance(function, dict):
            raise _missing(f"{where}.function")
        name = function.get("name")
        if name is None:
            raise _missing(f"{where}.function.name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _wrong(
                f"{where}.function.name",
                f"'{where}.function.name' must be 1 to 64 letters, digits, '_' or '-'.",
            )
        if name in names:
            raise _wrong(f"{where}.function.name", "Two functions have the same name.")
        names.add(name)
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            raise _wrong(
                f"{where}.function.parameters",
                f"Invalid type for '{where}.function.parameters': expected an object.",
                "invalid_type",
            )
        description = function.get("description")
        if description is not None and not isinstance(description, str):
            raise _wrong(
                f"{where}.function.description",
                f"Invalid type for '{where}.function.description': expected a string.",
                "invalid_type",
            )
    return names


def check_response_format(asked: Any, param: str = "response_format") -> None:
    """Look at `response_format`.

    Raises:
        OpenAIError: It cannot be used (400).
    """
    if asked is None:
        return
    if not isinstance(asked, dict):
        raise _wrong(param, f"Invalid type for '{param}': expected an object.", "invalid_type")
    kind = asked.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise _wrong(f"{param}.type", f"'{param}.type' must be text, json_object or json_schema.")
    if kind != "json_schema":
        return
    form = asked.get("json_schema")
    if not isinstance(form, dict):
        raise _missing(f"{param}.json_schema")
    name = form.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _missing(f"{param}.json_schema.name")
    if not isinstance(form.get("schema"), dict):
        raise _missing(f"{param}.json_schema.schema")


def _wrong(param: str, message: str, code: str = "invalid_value") -> OpenAIError:
    return OpenAIError(400, message, code=code, param=param)


def _missing(param: str) -> OpenAIError:
    return _wrong(param, f"Missing required parameter: '{param}'.", "missing_required_parameter")
