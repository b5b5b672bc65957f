"""Tools, the choice among them, and the form an answer must have, as chat requests say it."""

from __future__ import annotations

import re
from typing import Any

from api.openai.fields import (
    check_names,
    check_type,
    missing,
    refuse_unsupported,
    wrong,
    wrong_type,
)

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
        raise wrong("tool_choice", "'tool_choice' is only allowed when 'tools' are given.")
    if isinstance(choice, str):
        if choice not in _MODES:
            raise wrong("tool_choice", f"'tool_choice' must be one of {', '.join(_MODES)}.")
        return
    if not isinstance(choice, dict):
        raise wrong_type("tool_choice", "a string or an object")
    if choice.get("type") != "function":
        raise refuse_unsupported("tool_choice.type", "'function' is, no other kind of tool")
    check_names(choice, ("type", "function"), "tool_choice")
    function = choice.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise missing("tool_choice.function.name")
    check_names(function, ("name",), "tool_choice.function")
    if function["name"] not in names:
        raise wrong(
            "tool_choice.function.name", "'tool_choice' names a function that is not in 'tools'."
        )


def _check_list(tools: Any) -> set[str]:
    if tools is None:
        return set()
    if not isinstance(tools, list):
        raise wrong_type("tools", "an array")
    if not tools:
        raise wrong("tools", "'tools' needs at least 1 item(s).", "empty_array")
    if len(tools) > _MOST_TOOLS:
        raise wrong(
            "tools",
            f"'tools' is too long: at most {_MOST_TOOLS} items are allowed.",
            "array_above_max_length",
        )
    names: set[str] = set()
    for number, tool in enumerate(tools):
        name = _check_tool(tool, f"tools[{number}]")
        if name in names:
            raise wrong(f"tools[{number}].function.name", "Two functions have the same name.")
        names.add(name)
    return names


def _check_tool(tool: Any, where: str) -> str:
    """Return the name of a function."""
    if not isinstance(tool, dict):
        raise wrong_type(where, "an object")
    if "type" not in tool:
        raise missing(f"{where}.type")
    if tool["type"] != "function":
        raise refuse_unsupported(f"{where}.type", "only functions are")
    check_names(tool, ("type", "function"), where)
    function, where = tool.get("function"), f"{where}.function"
    if not isinstance(function, dict):
        raise missing(where)
    check_names(function, ("name", "description", "parameters", "strict"), where)
    name = function.get("name")
    if name is None:
        raise missing(f"{where}.name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise wrong(f"{where}.name", f"'{where}.name' must be 1 to 64 letters, digits, '_' or '-'.")
    check_type(function, "parameters", dict, where)
    check_type(function, "description", str, where)
    check_type(function, "strict", bool, where)
    return name


def check_response_format(asked: Any) -> None:
    """Look at `response_format`.

    Raises:
        OpenAIError: It cannot be used (400).
    """
    if asked is None:
        return
    param = "response_format"
    if not isinstance(asked, dict):
        raise wrong_type(param, "an object")
    kind = asked.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise wrong(f"{param}.type", f"'{param}.type' must be text, json_object or json_schema.")
    if kind != "json_schema":
        check_names(asked, ("type",), param)
        return
    check_names(asked, ("type", "json_schema"), param)
    form, param = asked.get("json_schema"), f"{param}.json_schema"
    if not isinstance(form, dict):
        raise missing(param)
    check_names(form, ("name", "description", "schema", "strict"), param)
    name = form.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise missing(f"{param}.name")
    if not isinstance(form.get("schema"), dict):
        raise missing(f"{param}.schema")
    check_type(form, "description", str, param)
    check_type(form, "strict", bool, param)
