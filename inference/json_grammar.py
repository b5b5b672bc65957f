"""JSON Schema to GBNF.

A schema becomes a grammar here, not inside an engine, for two reasons: what cannot be promised
is refused instead of silently not kept, and a constrained generation can be resumed (see
`inference.grammar`). Objects are written with their properties in the declared order, those and
no others; at most one space follows a colon or comma, so that a weak model cannot loop in white
space.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

MAX_ENUMERATED = 1000
MAX_RULES = 5000

_BASIC = {
    "space": '" "?',
    "hex": "[0-9a-fA-F]",
    # No lone surrogates: they are no characters and would break whoever reads the text.
    "char": (
        '[^"\\\\\\x00-\\x1F] | "\\\\" (["\\\\/bfnrt] | "u" ([0-9a-cA-CefEF] hex hex hex | '
        '[dD] ([0-7] hex hex | [89abAB] hex hex "\\\\u" [dD] [c-fC-F] hex hex)))'
    ),
    "string": '"\\"" char* "\\""',
    "integer": '"-"? ("0" | [1-9] [0-9]{0,14})',
    "natural": '"0" | [1-9] [0-9]{0,14}',
    "positive": "[1-9] [0-9]{0,14}",
    "number": '"-"? ("0" | [1-9] [0-9]{0,14}) ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "object": '"{" (string ":" space value ("," space string ":" space value)*)? "}"',
    "array": '"[" (value ("," space value)*)? "]"',
    "value": "object | array | string | number | boolean | null",
}

_SILENT = frozenset(
    ["$comment", "$defs", "$id", "$schema", "additionalProperties", "default", "definitions"]
) | frozenset(["deprecated", "description", "examples", "readOnly", "title", "type", "writeOnly"])
"""Keywords that need no rule of their own. `additionalProperties` is one: only declared
properties are ever written, which obeys it whatever it says."""


class SchemaError(ValueError):
    """The schema is wrong, or asks for something a grammar cannot promise."""


def schema_grammar(text: str) -> str:
    """The GBNF grammar of a JSON Schema's instances.

    Args:
        text: JSON Schema. Supported: type (also a list), properties, required, items,
            prefixItems, minItems, maxItems, minLength, maxLength, enum, const, anyOf, oneOf,
            allOf of one, $ref within the document, and minimum / maximum of integers.

    Raises:
        SchemaError: Names the keyword and where it stands.
    """
    try:
        return _Writer(json.loads(text)).grammar()
    except json.JSONDecodeError as error:
        raise SchemaError(f"the schema is not JSON: {error}") from error
    except RecursionError:
        raise SchemaError("the schema is nested too deeply") from None


class _Writer:
    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._rules: dict[str, str] = {}
        self._refs: dict[str, str] = {}

    def grammar(self) -> str:
        root = self._visit(self._root, "#")
        lines = [f"root ::= {root}"]
        used = {**_BASIC, **self._rules}
        lines += [f"{name} ::= {body}" for name, body in used.items()]
        return "\n".join(lines) + "\n"

    def _visit(self, schema: Any, where: str) -> str:
        """What to write where an instance of the schema stands: a rule's name or a literal."""
        if schema is True:
            return "value"
        if not isinstance(schema, dict):
            raise SchemaError(f"{where}: a schema is an object")
        if "$ref" in schema:
            return self._reference(schema["$ref"], where)
        if "const" in schema:
            return _literal(schema["const"])
        if "enum" in schema:
            values = _list(schema, "enum", where)
            return self._rule(" | ".join(_literal(value) for value in values))
        for key in ("anyOf", "oneOf"):
            if key in schema:
                self._only(schema, where, key)
                options = _list(schema, key, where)
                return self._rule(
                    " | ".join(self._visit(o, f"{where}/{key}/{n}") for n, o in enumerate(options))
                )
        if "allOf" in schema:
            parts = _list(schema, "allOf", where)
            if len(parts) != 1:
                raise SchemaError(f"{where}: allOf of several schemas is not supported")
            self._only(schema, where, "allOf")
            return self._visit(parts[0], f"{where}/allOf/0")
        kind = schema.get("type")
        if isinstance(kind, list):
            if not kind:
                raise SchemaError(f"{where}: type is empty")
            return self._rule(
                " | ".join(self._visit({**schema, "type": each}, where) for each in kind)
            )
        return self._typed(kind, schema, where)

    def _typed(self, kind: Any, schema: dict[str, Any], where: str) -> str:
        if kind is None:
            kind = next((k for k, keys in _IMPLIED.items() if keys & schema.keys()), None)
            if kind is None:
                self._only(schema, where)
                return "value"
        writers: dict[str, Callable[[dict[str, Any], str], str]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
        }
        if kind in writers:
            return writers[kind](schema, where)
        if kind in ("boolean", "null"):
            self._only(schema, where)
            return str(kind)
        raise SchemaError(f"{where}: unknown type {kind!r}")

    def _object(self, schema: dict[str, Any], where: str) -> str:
        self._only(schema, where, "properties", "required")
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise SchemaError(f"{where}: properties is an object and required a list")
        missing = [name for name in required if name not in properties]
        if missing:
            raise SchemaError(f"{where}: required property {missing[0]!r} is not declared")
        extra = schema.get("additionalProperties", True)
        if not properties:
            if extra is False:
                return '"{}"'
            value = self._visit(extra, f"{where}/additionalProperties")
            pair = f'string ":" space {value}'
            return self._rule(f'"{{" ({pair} ("," space {pair})*)? "}}"')
        pairs = [
            f'{_literal(name)} ":" space {self._visit(each, f"{where}/properties/{name}")}'
            for name, each in properties.items()
        ]
        needed = [name in required for name in properties]
        # Written backwards: what may follow property n, when something stands before it or not.
        after, before = '""', '""'
        for pair, must in zip(reversed(pairs), reversed(needed), strict=True):
            follow, start = f'"," space {pair} {after}', f"{pair} {after}"
            if not must:
                follow, start = f"{follow} | {after}", f"{start} | {before}"
            after, before = self._rule(follow), self._rule(start)
        return f'"{{" {before} "}}"'

    def _array(self, schema: dict[str, Any], where: str) -> str:
        self._only(schema, where, "items", "prefixItems", "minItems", "maxItems")
        least, most = _bounds(schema, "minItems", "maxItems", where)
        fixed = schema.get("prefixItems", [])
        if fixed:
            if schema.get("items", False) is not False or least or most is not None:
                raise SchemaError(f"{where}: prefixItems goes without items and counts only")
            each = [self._visit(s, f"{where}/prefixItems/{n}") for n, s in enumerate(fixed)]
            return self._rule('"[" ' + ' "," space '.join(each) + ' "]"')
        item = self._visit(schema.get("items", True), f"{where}/items")
        if most == 0:
            return '"[]"'
        more = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        several = f'{item} ("," space {item}){more}'
        return self._rule(f'"[" ({several}){"" if least else "?"} "]"')

    def _string(self, schema: dict[str, Any], where: str) -> str:
        self._only(schema, where, "minLength", "maxLength")
        least, most = _bounds(schema, "minLength", "maxLength", where)
        if not least and most is None:
            return "string"
        return self._rule(f'"\\"" char{{{least},{"" if most is None else most}}} "\\""')

    def _integer(self, schema: dict[str, Any], where: str) -> str:
        self._only(schema, where, "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        low, high = schema.get("minimum"), schema.get("maximum")
        if "exclusiveMinimum" in schema:
            low = schema["exclusiveMinimum"] + 1
        if "exclusiveMaximum" in schema:
            high = schema["exclusiveMaximum"] - 1
        if low is None and high is None:
            return "integer"
        if high is None and low in (0, 1):
            return "natural" if low == 0 else "positive"
        if low is None or high is None or not 0 <= high - low <= MAX_ENUMERATED:
            raise SchemaError(
                f"{where}: a range of integers needs both ends, at most {MAX_ENUMERATED} apart, "
                "or a minimum of 0 or 1 alone"
            )
        return self._rule(" | ".join(f'"{value}"' for value in range(int(low), int(high) + 1)))

    def _number(self, schema: dict[str, Any], where: str) -> str:
        self._only(schema, where)
        return "number"

    def _reference(self, ref: Any, where: str) -> str:
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise SchemaError(f"{where}: $ref must point into this document")
        if ref not in self._refs:
            target: Any = self._root
            for part in ref.removeprefix("#").strip("/").split("/"):
                key = part.replace("~1", "/").replace("~0", "~")
                if key and not (isinstance(target, dict) and key in target):
                    raise SchemaError(f"{where}: $ref {ref!r} leads nowhere")
                target = target[key] if key else target
            # Named before it is visited, so that a schema may contain itself.
            name = self._refs[ref] = self._fresh()
            self._rules[name] = self._visit(target, ref)
        return self._refs[ref]

    def _rule(self, body: str) -> str:
        name = self._fresh()
        self._rules[name] = body
        return name

    def _fresh(self) -> str:
        if len(self._rules) > MAX_RULES:
            raise SchemaError("the schema is too large")
        name = f"r{len(self._rules)}"
        self._rules[name] = ""
        return name

    def _only(self, schema: dict[str, Any], where: str, *known: str) -> None:
        for key in schema:
            if key not in _SILENT and key not in known:
                raise SchemaError(f"{where}: keyword {key!r} is not supported here")


_IMPLIED = {
    "object": {"properties", "required"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength"},
}


def _literal(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    return '"' + written.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _list(schema: dict[str, Any], key: str, where: str) -> list[Any]:
    values = schema[key]
    if not isinstance(values, list) or not values:
        raise SchemaError(f"{where}: {key} is a list that is not empty")
    return values


def _bounds(schema: dict[str, Any], low: str, high: str, where: str) -> tuple[int, int | None]:
    least, most = schema.get(low, 0), schema.get(high)
    for value in (least, most):
        if value is not None and (not isinstance(value, int) or not 0 <= value <= 2000):
            raise SchemaError(f"{where}: {low} and {high} are integers from 0 to 2000")
    if most is not None and most < least:
        raise SchemaError(f"{where}: {high} is below {low}")
    return least, most
