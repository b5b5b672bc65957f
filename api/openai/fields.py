"""What a request may hold, read strictly, and every mismatch in OpenAI's words.

Pydantic's messages are not used, because some of them quote the input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from api.openai.errors import OpenAIError

__all__ = [
    "Asked",
    "LogitBias",
    "Metadata",
    "Stop",
    "User",
    "check_choice",
    "check_names",
    "check_type",
    "missing",
    "param_of",
    "read",
    "refuse_unsupported",
    "wrong",
    "wrong_type",
]


class Asked(BaseModel):
    """Base of what a caller writes; a field nobody knows is a mistake to be told of."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


User = Annotated[str, StringConstraints(max_length=200)]
_StopText = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Stop = _StopText | Annotated[list[_StopText], Field(max_length=4)]
Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(min_length=1, max_length=64)],
        Annotated[str, StringConstraints(max_length=512)],
    ],
    Field(max_length=16),
]
LogitBias = Annotated[
    dict[
        Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")],
        Annotated[float, Field(ge=-100, le=100)],
    ],
    Field(max_length=1024),
]

M = TypeVar("M", bound=BaseModel)

#: Words by pydantic's kind of error: OpenAI's code, and what is expected.
_WORDS: Mapping[str, tuple[str, str]] = {
    "missing": ("missing_required_parameter", "Missing required parameter: '{param}'."),
    "extra_forbidden": ("unknown_parameter", "Unknown parameter: '{param}'."),
    "string_type": ("invalid_type", "Invalid type for '{param}': expected a string."),
    "string_too_short": (
        "string_below_min_length",
        "'{param}' is too short: at least {min_length} character(s) are needed.",
    ),
    "string_too_long": (
        "string_above_max_length",
        "'{param}' is too long: at most {max_length} characters are allowed.",
    ),
    "string_pattern_mismatch": ("invalid_value", "'{param}' does not have the expected form."),
    "too_short": ("empty_array", "'{param}' needs at least {min_length} item(s)."),
    "too_long": (
        "array_above_max_length",
        "'{param}' is too long: at most {max_length} items are allowed.",
    ),
    "int_type": ("invalid_type", "Invalid type for '{param}': expected an integer."),
    "int_from_float": ("invalid_type", "Invalid type for '{param}': expected an integer."),
    "float_type": ("invalid_type", "Invalid type for '{param}': expected a number."),
    "finite_number": ("invalid_value", "'{param}' must be a finite number."),
    "bool_type": ("invalid_type", "Invalid type for '{param}': expected true or false."),
    "list_type": ("invalid_type", "Invalid type for '{param}': expected an array."),
    "dict_type": ("invalid_type", "Invalid type for '{param}': expected an object."),
    "model_type": ("invalid_type", "Invalid type for '{param}': expected an object."),
    "model_attributes_type": ("invalid_type", "Invalid type for '{param}': expected an object."),
    "literal_error": ("invalid_value", "Invalid value for '{param}': expected {expected}."),
    "union_tag_invalid": (
        "invalid_value",
        "Invalid value for '{param}': expected one of {expected_tags}.",
    ),
    "union_tag_not_found": (
        "missing_required_parameter",
        "'{param}' does not say which kind it is.",
    ),
    "greater_than": ("below_min_value", "'{param}' must be more than {gt}."),
    "greater_than_equal": ("below_min_value", "'{param}' must be at least {ge}."),
    "less_than": ("above_max_value", "'{param}' must be less than {lt}."),
    "less_than_equal": ("above_max_value", "'{param}' must be at most {le}."),
}
_UNKNOWN = ("invalid_value", "The value of '{param}' cannot be used.")


def read(model: type[M], document: Any) -> M:
    """Read a parsed body as `model`.

    Raises:
        OpenAIError: It does not fit (400): the first thing that is wrong, by name.
    """
    if not isinstance(document, dict):
        raise OpenAIError(400, "The body must be a JSON object.", code="invalid_type")
    try:
        return model.model_validate(document)
    except ValidationError as exc:
        raise _refusal(exc.errors(include_url=False, include_input=False)) from None


def _refusal(found: Sequence[Any]) -> OpenAIError:
    # Of a union every member complains; the one that came furthest knows best.
    deepest = max(found, key=lambda e: (len(e["loc"]), not e["type"].endswith("_type")))
    first = found[0]
    error = deepest if deepest["loc"][:1] == first["loc"][:1] else first
    param = param_of(error["loc"])
    if error["type"] == "value_error":
        # The validators of our own schemas raise constant sentences, without the input.
        told = error["ctx"]["error"]
        where = getattr(told, "param", None)
        full = ".".join(part for part in (param, where) if part) or None
        return OpenAIError(400, f"{told}.", code=getattr(told, "code", "invalid_value"), param=full)
    code, words = _WORDS.get(error["type"], _UNKNOWN)
    context = error.get("ctx") or {}
    try:
        message = words.format_map({**context, "param": param or "the body"})
    except (KeyError, IndexError, ValueError):
        message = _UNKNOWN[1].format(param=param)
    return OpenAIError(400, message, code=code, param=param or None)


def param_of(location: Sequence[str | int]) -> str:
    """Return a location as OpenAI writes it: `messages[0].content`."""
    param = ""
    for part in location:
        if isinstance(part, int):
            param += f"[{part}]"
        elif not _is_tag(part):
            name = part.encode("utf-8", "replace").decode().replace("\x00", "?")[:80]
            param += f".{name}" if param else name
    return param


def _is_tag(part: str) -> bool:
    """Pydantic puts the member of a union that complained into the location."""
    return part in _MEMBERS or part.startswith(("list[", "constrained-", "function-", "dict["))


_MEMBERS = frozenset({"str", "int", "float", "bool"})


def refuse_unsupported(param: str, why: str) -> OpenAIError:
    """Return the refusal of a parameter that is known and not kept: none is dropped silently."""
    return OpenAIError(
        400,
        f"'{param}' is not supported: {why}.",
        code="unsupported_parameter",
        param=param,
    )


def wrong(param: str, message: str, code: str = "invalid_value") -> OpenAIError:
    """Return the refusal of a parameter that cannot be used as it is."""
    return OpenAIError(400, message, code=code, param=param)


def missing(param: str) -> OpenAIError:
    """Return the refusal of a request without a parameter that it needs."""
    return wrong(param, f"Missing required parameter: '{param}'.", "missing_required_parameter")


def wrong_type(param: str, expected: str) -> OpenAIError:
    """Return the refusal of a parameter of another type than is expected: `a string`."""
    return wrong(param, f"Invalid type for '{param}': expected {expected}.", "invalid_type")


_EXPECTED: Mapping[type, str] = {
    str: "a string",
    bool: "true or false",
    dict: "an object",
    list: "an array",
}


def check_type(document: Mapping[str, Any], name: str, kind: type, where: str) -> None:
    """Look at a field that may be left out, or null.

    Raises:
        OpenAIError: It is of another type (400).
    """
    value = document.get(name)
    if value is not None and not isinstance(value, kind):
        raise wrong_type(f"{where}.{name}", _EXPECTED[kind])


def check_choice(
    document: Mapping[str, Any], name: str, choices: tuple[str, ...], where: str
) -> None:
    """Look at a field that may be left out, or null, or one of some words.

    Raises:
        OpenAIError: It is something else (400).
    """
    value = document.get(name)
    if value is not None and value not in choices:
        param = f"{where}.{name}"
        raise wrong(param, f"Invalid value for '{param}': expected one of {', '.join(choices)}.")


def check_names(document: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Look at the names of an object's fields: none is dropped silently; what is null was not said.

    Raises:
        OpenAIError: One is not known (400).
    """
    for name, value in document.items():
        if name not in known and value is not None:
            param = f"{where}.{name[:80]}"
            raise wrong(param, f"Unknown parameter: '{param}'.", "unknown_parameter")
