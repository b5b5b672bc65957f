"""The JSON schemas of registered tools: what a grammar can hold a model to, and what is checked.

A schema comes from a stranger. References must stay inside it, it is bounded in size, and what a
grammar cannot promise (patterns, formats, ranges) is left to the check of the arguments.
"""

from __future__ import annotations

import json
from typing import Any

from inference.grammar_reader import read_grammar
from inference.json_grammar import schema_grammar

__all__ = ["SchemaRefused", "grammar_schema", "require_usable"]

MAX_SCHEMA_BYTES = 16_384
# A small model can write a string for ever; a call must end.
STRING_CHARS = 300
ARRAY_ITEMS = 16

_KEPT = frozenset(
    ["type", "properties", "required", "items", "prefixItems", "minItems", "maxItems", "minLength"]
) | frozenset(["maxLength", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs"])
_KEPT_OF_INTEGERS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])


class SchemaRefused(ValueError):
    """The schema of a tool's arguments cannot be used; the text says why."""


def require_usable(schema: dict[str, Any]) -> None:
    """Look at the schema of a tool's arguments as it was registered.

    Raises:
        SchemaRefused: It is too large, leads out of itself, or no grammar can follow it.
    """
    try:
        size = len(json.dumps(schema))
    except (TypeError, ValueError, RecursionError):
        raise SchemaRefused("the schema is not JSON, or nested too deeply") from None
    if size > MAX_SCHEMA_BYTES:
        raise SchemaRefused(f"the schema has {size:,} bytes; {MAX_SCHEMA_BYTES:,} are taken")
    if schema.get("type", "object") != "object":
        raise SchemaRefused("the arguments of a tool are an object")
    try:
        read_grammar(schema_grammar(json.dumps(grammar_schema(schema))))
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise SchemaRefused(f"no grammar for the schema: {error}"[:300]) from None


def grammar_schema(schema: dict[str, Any], root: str = "#") -> dict[str, Any]:
    """Return the part of a schema that a grammar can promise.

    Args:
        schema: JSON schema of an object.
        root: Where the schema will stand in the document it becomes part of.

    Raises:
        SchemaRefused: A reference leads out of the schema.
    """
    softened: dict[str, Any] = _soften(schema, root)
    # Without properties a grammar would have any object be written, by a model without a clue.
    if "$ref" not in softened and not {"anyOf", "oneOf", "allOf"} & softened.keys():
        softened.setdefault("type", "object")
        softened.setdefault("properties", {})
        softened["required"] = [
            name for name in softened.get("required", []) if name in softened["properties"]
        ]
        softened["additionalProperties"] = False
    return softened


def _soften(schema: Any, root: str) -> Any:
    if not isinstance(schema, dict):
        return True if schema in (True, {}) else schema
    if "$ref" in schema:
        target = schema["$ref"]
        if not isinstance(target, str) or not target.startswith("#"):
            raise SchemaRefused("a reference leads out of the schema")
        return {"$ref": root + target[1:], **_definitions(schema, root)}
    several = {"anyOf", "oneOf"} & schema.keys()
    if several:
        key = several.pop()
        return {key: [_soften(each, root) for each in schema[key]], **_definitions(schema, root)}
    kept = {key: value for key, value in schema.items() if key in _KEPT}
    if schema.get("type") == "integer" and _is_range(schema):
        kept |= {key: value for key, value in schema.items() if key in _KEPT_OF_INTEGERS}
    if len(kept.get("allOf", ())) == 1:
        return {"allOf": [_soften(kept["allOf"][0], root)], **_definitions(schema, root)}
    kept.pop("allOf", None)
    if isinstance(kept.get("properties"), dict):
        kept["properties"] = {
            name: _soften(each, root) for name, each in kept["properties"].items()
        }
        kept["required"] = [name for name in kept.get("required", []) if name in kept["properties"]]
    if "items" in kept:
        kept["items"] = _soften(kept["items"], root)
    if isinstance(kept.get("prefixItems"), list):
        kept["prefixItems"] = [_soften(each, root) for each in kept["prefixItems"]]
    if kept.get("type") == "string" and "enum" not in kept:
        kept["maxLength"] = min(kept.get("maxLength", STRING_CHARS), STRING_CHARS)
        kept["minLength"] = min(kept.get("minLength", 0), kept["maxLength"])
    if kept.get("type") == "array" and "prefixItems" not in kept:
        kept["maxItems"] = min(kept.get("maxItems", ARRAY_ITEMS), ARRAY_ITEMS)
        kept["minItems"] = min(kept.get("minItems", 0), kept["maxItems"])
    return kept | _definitions(schema, root)


def _is_range(schema: dict[str, Any]) -> bool:
    low, high = schema.get("minimum"), schema.get("maximum")
    if not isinstance(low, int) or schema.keys() & {"exclusiveMinimum", "exclusiveMaximum"}:
        return False
    return (high is None and low in (0, 1)) or (isinstance(high, int) and 0 <= high - low <= 1000)


def _definitions(schema: dict[str, Any], root: str) -> dict[str, Any]:
    found = schema.get("$defs")
    if not isinstance(found, dict):
        return {}
    return {"$defs": {name: _soften(each, root) for name, each in found.items()}}
