"""Takes the words out of a bundle and leaves what its replay needs.

What stays is listed, not what goes: a field nobody thought of loses its text. Equal texts of one
bundle become equal marks, because a workflow may compare them; the salt is thrown away, so that a
mark cannot be looked up in a list of likely texts.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

from google.protobuf.message import Message
from pydantic import BaseModel
from temporalio.api.common.v1 import Payload

from api.cli.payloads import is_map
from workflows.contracts import Asked, Wire

__all__ = ["Redaction"]

#: Fields whose text is a name, an id, a digest, a time, an amount or a choice.
# fmt: off
_KEPT = frozenset({
    "action", "asks", "at", "cache", "cache_hit", "channel", "code", "collections", "decision",
    "dedupe", "deployment", "digest", "engine", "finish", "finish_reason", "hit", "key", "kind",
    "label", "layer", "mode", "model", "model_version", "name", "order", "outcome", "overlap",
    "phase", "place", "policy", "purpose", "replica", "role", "route", "rule", "scope", "sealed",
    "state", "status", "strategy",
    "tokenizer_version", "tool", "tools", "traceparent", "triton_model", "type", "urls",
    "usage_source", "version", "waste_cause",
})
# fmt: on
_KEPT_ENDINGS = ("_usd", "_usd_per_million", "_id", "_ids", "_key", "_digest", "_at", "definition")
#: What an id, a key, a digest, a time or an amount of ours looks like; a caller's own does not.
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OURS = re.compile(
    rf"^(?:(?:[a-z]+-)*{_UUID}(?:[-:#@.][\w.-]*)*|[0-9a-f]{{16,}}|[0-9][0-9.:T+Z-]*|-?[0-9.]+|)$"
)
_NEVER = frozenset({"idempotency_key", "user_id", "external_id"})
#: Whatever names are used within these, a caller or a model chose them.
_FREE = frozenset({"arguments", "tags", "metadata", "output", "tool_result", "variables"})
_NAME_LIKE = re.compile(r"^[\w.:#@/+%,-]{0,256}$")
#: Lists of token ids are texts in other letters.
_TOKENS = frozenset({"token_ids", "prompt_ids", "generated_ids", "input_ids", "embedding"})
_MARK = "redacted-"


class Redaction:
    """Redacts the parts of one bundle."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(32)

    def value(self, value: Any, name: str | None = None, *, free: bool = False) -> Any:
        """Return a JSON value without its texts.

        Args:
            value: Any JSON value.
            name: Name of the field it is in.
            free: Whether nothing in it may stay by its name.
        """
        if isinstance(value, dict):
            return {
                key: self.value(item, key, free=free or key in _FREE) for key, item in value.items()
            }
        if isinstance(value, list):
            if name in _TOKENS:
                return []
            return [self.value(item, name, free=free) for item in value]
        if isinstance(value, str):
            return value if not free and _stays(name, value) else self.mark(value)
        return value

    def mark(self, text: str) -> str:
        """Return what stands for a text; an empty text stays empty."""
        if not text or text.startswith(_MARK):
            return text
        return _MARK + hashlib.blake2s(text.encode(), key=self._salt, digest_size=8).hexdigest()

    def payload(self, payload: Payload) -> None:
        """Redact a decrypted payload in place; one that is no JSON is emptied."""
        encoding = payload.metadata.get("encoding", b"")
        if encoding == b"binary/null":
            return
        try:
            document = json.loads(payload.data)
        except ValueError:
            payload.data = b""
            return
        if _is_patch(document):
            return
        payload.data = json.dumps(self.value(document), separators=(",", ":")).encode()

    def message(self, message: Message) -> None:
        """Redact what a history holds beside its payloads: failures, who worked, reasons."""
        for field, value in message.ListFields():
            if field.type == field.TYPE_STRING and field.name in _SAID_IN_HISTORIES:
                setattr(message, field.name, self.mark(value))
            elif field.type == field.TYPE_MESSAGE and not is_map(field):
                for each in (value,) if isinstance(value, Message) else value:
                    if not isinstance(each, Payload):
                        self.message(each)


_SAID_IN_HISTORIES = frozenset({"message", "stack_trace", "source", "identity", "reason"})


def _is_patch(document: Any) -> bool:
    """Tell whether it is the SDK's own mark of a change of our code, which replays by its name."""
    return (
        isinstance(document, dict)
        and document.keys() == {"id", "deprecated"}
        and document["deprecated"] in (True, False)
        and re.fullmatch(r"[a-z-]{1,64}", str(document["id"])) is not None
    )


def _stays(name: str | None, text: str) -> bool:
    if name is None or name in _NEVER:
        return False
    if text in _choices().get(name, ()):
        return True
    if name in _KEPT:
        return _NAME_LIKE.match(text) is not None
    return name.endswith(_KEPT_ENDINGS) and _OURS.match(text) is not None


@lru_cache(maxsize=1)
def _choices() -> dict[str, set[str]]:
    """What fields with a fixed choice may say, by field: read off the contracts themselves."""
    found: dict[str, set[str]] = {}
    waiting: list[type[BaseModel]] = [Wire, Asked]
    while waiting:
        model = waiting.pop()
        waiting.extend(model.__subclasses__())
        for name, field in model.model_fields.items():
            found.setdefault(name, set()).update(_choices_of(field.annotation))
    return found


def _choices_of(annotation: Any) -> set[str]:
    if get_origin(annotation) is Literal:
        return {choice for choice in get_args(annotation) if isinstance(choice, str)}
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return {choice.value for choice in annotation}
    return {choice for part in get_args(annotation) for choice in _choices_of(part)}
