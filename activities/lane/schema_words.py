"""Which words of a JSON Schema are somebody's: all but names, and what JSON Schema itself says."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import Any

from safety.json_text import digits_of

__all__ = ["with_schema_words", "with_words"]

Change = Callable[[str], str]

# Below these names are somebody's own; they are said again below the others.
_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_NAMES_AGAIN = frozenset({"required", "dependentRequired", "dependencies"})
_REFERS_TO_NAMES = frozenset({"$ref", "$dynamicRef", "$anchor", "$dynamicAnchor"})
# What is below these is no schema.
_VALUES = frozenset({"default", "const", "enum", "examples", "example"})
_TYPES = frozenset({"string", "number", "integer", "object", "array", "boolean", "null"})
_FORMATS = frozenset(
    {
        *("date-time", "date", "time", "duration", "email", "idn-email", "hostname"),
        *("idn-hostname", "ipv4", "ipv6", "uri", "uri-reference", "uri-template", "iri"),
        *("iri-reference", "uuid", "json-pointer", "relative-json-pointer", "regex", "int32"),
        *("int64", "float", "double", "byte", "binary", "password"),
    }
)
_BOUNDS = frozenset(
    {
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        *("minContains", "maxContains"),
    }
)
# A number with more digits may be anybody's, whatever it is said to bound.
_LONGEST_BOUND = 6


def with_schema_words(schema: Any, change: Change) -> Any:
    """Return a schema with its words and numbers changed; a changed number is a string."""
    return _schema(schema, change, frozenset(_property_names(schema)))


def with_words(value: Any, change: Change, known: Collection[str] = ()) -> Any:
    """Return JSON with all words and numbers in it changed, but those that are known."""
    match value:
        case str():
            return value if value in known else change(value)
        case dict():
            return {name: with_words(each, change, known) for name, each in value.items()}
        case list():
            return [with_words(each, change, known) for each in value]
        case _ if _is_number(value):
            digits = digits_of(json.dumps(value))
            changed = change(digits)
            return value if changed == digits else changed
        case _:
            return value


def _schema(value: Any, change: Change, names: Collection[str]) -> Any:
    match value:
        case dict():
            return {name: _below(name, each, change, names) for name, each in value.items()}
        case list():
            return [_schema(each, change, names) for each in value]
        case _:
            return with_words(value, change)


def _below(name: str, value: Any, change: Change, names: Collection[str]) -> Any:
    """Change what a schema says under a name."""
    if name in _NAMES and isinstance(value, dict):
        return {own: _schema(each, change, names) for own, each in value.items()}
    if _is_schemas_own(name, value):
        return value
    if name in _NAMES_AGAIN:
        return with_words(value, change, names)
    return with_words(value, change) if name in _VALUES else _schema(value, change, names)


def _is_schemas_own(name: str, value: Any) -> bool:
    """Whether a value is one that JSON Schema itself has under a name."""
    if name == "type":
        said = value if isinstance(value, list) else [value]
        return all(isinstance(each, str) and each in _TYPES for each in said)
    if name == "format":
        return isinstance(value, str) and value in _FORMATS
    if name in _REFERS_TO_NAMES:
        return isinstance(value, str) and value.startswith("#")
    return name in _BOUNDS and _is_number(value) and len(str(value)) <= _LONGEST_BOUND


def _property_names(value: Any) -> Iterator[str]:
    match value:
        case dict():
            properties = value.get("properties")
            if isinstance(properties, dict):
                yield from properties
            for each in value.values():
                yield from _property_names(each)
        case list():
            for each in value:
                yield from _property_names(each)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
