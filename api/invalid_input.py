"""What is said about input that does not fit: our own words for every kind of mismatch.

Pydantic's messages are not used, because some of them quote the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api.problems import FieldProblem

__all__ = ["field_problems", "pointer_to"]

_WORDS: Mapping[str, tuple[str, str]] = {
    "missing": ("missing", "This field is required."),
    "extra_forbidden": ("unknown_field", "There is no such field."),
    "string_type": ("wrong_type", "A string is expected."),
    "string_unicode": ("lone_surrogate", "The text holds a lone surrogate: not valid Unicode."),
    "string_too_short": ("too_short", "At least {min_length} character(s) are needed."),
    "string_too_long": ("too_long", "At most {max_length} characters are allowed."),
    "string_pattern_mismatch": ("wrong_form", "The text does not have the form of this field."),
    "too_short": ("too_short", "At least {min_length} item(s) are needed."),
    "too_long": ("too_long", "At most {max_length} items are allowed."),
    "int_type": ("wrong_type", "An integer is expected."),
    "int_parsing": ("wrong_type", "An integer is expected."),
    "int_from_float": ("wrong_type", "An integer is expected."),
    "float_type": ("wrong_type", "A number is expected."),
    "float_parsing": ("wrong_type", "A number is expected."),
    "finite_number": ("not_finite", "A finite number is expected."),
    "decimal_type": ("wrong_type", "A decimal number is expected."),
    "decimal_parsing": ("wrong_type", "A decimal number is expected."),
    "decimal_max_places": ("too_precise", "At most {decimal_places} decimal places are allowed."),
    "decimal_max_digits": ("too_large", "At most {max_digits} digits are allowed."),
    "decimal_whole_digits": ("too_large", "At most {whole_digits} whole digits are allowed."),
    "bool_type": ("wrong_type", "true or false is expected."),
    "bool_parsing": ("wrong_type", "true or false is expected."),
    "list_type": ("wrong_type", "An array is expected."),
    "tuple_type": ("wrong_type", "An array is expected."),
    "dict_type": ("wrong_type", "An object is expected."),
    "model_type": ("wrong_type", "An object is expected."),
    "model_attributes_type": ("wrong_type", "An object is expected."),
    "literal_error": ("not_allowed", "One of these is expected: {expected}."),
    "enum": ("not_allowed", "One of these is expected: {expected}."),
    "union_tag_invalid": ("not_allowed", "One of these kinds is expected: {expected_tags}."),
    "union_tag_not_found": ("missing", "The field that names the kind is missing."),
    "greater_than": ("too_small", "More than {gt} is expected."),
    "greater_than_equal": ("too_small", "At least {ge} is expected."),
    "less_than": ("too_large", "Less than {lt} is expected."),
    "less_than_equal": ("too_large", "At most {le} is allowed."),
    "uuid_type": ("wrong_form", "A UUID is expected."),
    "uuid_parsing": ("wrong_form", "A UUID is expected."),
    "datetime_type": ("wrong_form", "A time in RFC 3339 form is expected."),
    "datetime_parsing": ("wrong_form", "A time in RFC 3339 form is expected."),
    "datetime_from_date_parsing": ("wrong_form", "A time in RFC 3339 form is expected."),
    "timezone_aware": ("wrong_form", "A time with its offset from UTC is expected."),
}

_UNKNOWN = "The value does not fit this field."


def field_problems(errors: Sequence[Any]) -> tuple[FieldProblem, ...]:
    """Translate pydantic's errors into field problems that repeat nothing of the input."""
    return tuple(_field_problem(error) for error in errors[:50])


def _field_problem(error: Mapping[str, Any]) -> FieldProblem:
    location = list(error["loc"])
    part = location.pop(0) if location else "body"
    if part not in ("body", "query", "path", "header"):
        part = "body"
    if error["type"] == "json_invalid":
        location = []
    if error["type"] == "value_error":
        # The validators of our own schemas: they raise constant sentences, without the input.
        code, words = "contradiction", f"{error['ctx']['error']}."
    else:
        code, words = _WORDS.get(error["type"], ("invalid", _UNKNOWN))
    try:
        detail = words.format_map(error.get("ctx") or {})
    except (KeyError, IndexError, ValueError):
        detail = _UNKNOWN
    return FieldProblem.model_validate(
        {"pointer": pointer_to(location), "in": part, "code": code, "detail": detail}
    )


def pointer_to(location: Sequence[str | int]) -> str:
    """Return the JSON pointer of a location; names of the caller's own making are cut short."""
    return "".join("/" + _token(part) for part in location)


def _token(part: str | int) -> str:
    text = str(part).encode("utf-8", "replace").decode().replace("\x00", "?")
    if len(text) > 80:
        text = text[:80] + "…"
    return text.replace("~", "~0").replace("/", "~1")
