"""The items of a response's input, read strictly, as the chat messages that they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from api.openai.fields import check_names, missing, refuse_unsupported, wrong, wrong_type

__all__ = ["Conversation", "Origin"]

#: What an item has besides what is said in it: how it was told when it was an answer.
_TOLD = ("type", "id", "status")
_ITEMS: Mapping[str, tuple[str, ...]] = {
    "message": (*_TOLD, "role", "content", "phase"),
    "function_call": (*_TOLD, "call_id", "name", "arguments"),
    "function_call_output": (*_TOLD, "call_id", "output"),
}
_PARTS: Mapping[str, tuple[str, ...]] = {
    "input_text": ("type", "text"),
    # Remarks about a text that no model reads.
    "output_text": ("type", "text", "annotations", "logprobs"),
    "refusal": ("type", "refusal"),
    "input_image": ("type", "image_url", "detail"),
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message stands in its request.

    Attributes:
        place: Its item, or the parameter that it comes from: `input[3]`, `instructions`.
        said: The field of the item that has its content.
        calls: The items of its function calls.
    """

    place: str
    said: str = "content"
    calls: list[str] = field(default_factory=list)


class Conversation:
    """Chat messages, and where each of them comes from."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.origins: list[Origin] = []

    def add(self, message: dict[str, Any], place: str, said: str = "content") -> None:
        """Add a message that comes from `place`."""
        self.messages.append(message)
        self.origins.append(Origin(place, said, [place] * len(message.get("tool_calls") or ())))

    def add_history(self, messages: Sequence[dict[str, Any]], place: str) -> None:
        """Add what was said before."""
        for message in messages:
            self.add(message, place)

    def add_items(self, asked: Any) -> None:
        """Add a text, or items.

        Raises:
            OpenAIError: One of them cannot be used (400).
        """
        if asked is None:
            raise missing("input")
        if isinstance(asked, str):
            self.add({"role": "user", "content": asked}, "input")
            return
        if not isinstance(asked, list):
            raise wrong_type("input", "a string or an array")
        if not asked:
            raise wrong("input", "'input' needs at least 1 item(s).", "empty_array")
        # Calls belong to the turn before them only if it is of this request, too.
        first = len(self.messages)
        for number, item in enumerate(asked):
            self._add_item(item, f"input[{number}]", first)

    def _add_item(self, item: Any, where: str, first: int) -> None:
        if not isinstance(item, dict):
            raise wrong_type(where, "an object")
        kind = "message" if item.get("type") is None else item["type"]
        if not isinstance(kind, str) or kind not in _ITEMS:
            raise refuse_unsupported(
                f"{where}.type", "messages, function calls and their outputs are"
            )
        check_names(item, _ITEMS[kind], where)
        match kind:
            case "message":
                self.add(_message(item, where), where)
            case "function_call":
                self._add_call(item, where, first)
            case _:
                call_id, output = _text(item, "call_id", where), _output(item, where)
                answer = {"role": "tool", "tool_call_id": call_id, "content": output}
                self.add(answer, where, "output")

    def _add_call(self, item: dict[str, Any], where: str, first: int) -> None:
        call = {
            "id": _text(item, "call_id", where),
            "type": "function",
            "function": {
                "name": _text(item, "name", where),
                "arguments": _text(item, "arguments", where),
            },
        }
        if len(self.messages) > first and self.messages[-1].get("role") == "assistant":
            self.messages[-1].setdefault("tool_calls", []).append(call)
            self.origins[-1].calls.append(where)
        else:
            self.add({"role": "assistant", "content": None, "tool_calls": [call]}, where)


def _message(item: dict[str, Any], where: str) -> dict[str, Any]:
    message: dict[str, Any] = {name: item[name] for name in ("role", "content") if name in item}
    content = message.get("content")
    if isinstance(content, list):
        parts = [_part(part, f"{where}.content[{number}]") for number, part in enumerate(content)]
        one_text = len(parts) == 1 and parts[0]["type"] == "text"
        message["content"] = parts[0]["text"] if one_text else parts
    return message


def _output(item: dict[str, Any], where: str) -> Any:
    output = item.get("output")
    if isinstance(output, str):
        return output
    if not isinstance(output, list):
        raise missing(f"{where}.output")
    return [_part(part, f"{where}.output[{number}]") for number, part in enumerate(output)]


def _part(part: Any, where: str) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise wrong_type(where, "an object")
    kind = part.get("type")
    if kind is None:
        raise missing(f"{where}.type")
    if not isinstance(kind, str) or kind not in _PARTS:
        raise refuse_unsupported(f"{where}.type", "texts and images by URL are")
    if part.get("file_id") is not None:
        raise refuse_unsupported(f"{where}.file_id", "texts and images by URL are")
    check_names(part, _PARTS[kind], where)
    match kind:
        case "refusal":
            return {"type": "refusal", "refusal": _text(part, "refusal", where)}
        case "input_image":
            image = {"url": _text(part, "image_url", where)}
            if part.get("detail") is not None:
                image["detail"] = part["detail"]
            return {"type": "image_url", "image_url": image}
        case _:
            return {"type": "text", "text": _text(part, "text", where)}


def _text(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if value is None:
        raise missing(f"{where}.{name}")
    if not isinstance(value, str):
        raise wrong_type(f"{where}.{name}", "a string")
    return value
