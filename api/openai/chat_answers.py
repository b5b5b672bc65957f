"""Chat completions as they are sent: whole, or as chunks written with little work each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from api.openai.usage import chat_usage
from inference.answers import Answer, Choice
from inference.upstream.messages import Delta
from inference.usage import TokenUsage

__all__ = ["DONE", "ChatChunks", "chat_completion"]

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.encode


def chat_completion(
    answer: Answer,
    *,
    own_id: str,
    created: int,
    model: str,
    used: TokenUsage,
) -> dict[str, Any]:
    """Return the document of a whole chat completion."""
    return {
        "id": own_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [
            {
                "index": number,
                "message": _message(choice),
                "logprobs": choice.logprobs,
                "finish_reason": choice.finish_reason or "stop",
            }
            for number, choice in enumerate(answer.choices)
        ],
        "usage": chat_usage(used),
    }


def _message(choice: Choice) -> dict[str, Any]:
    text = choice.text
    message: dict[str, Any] = {
        "role": "assistant",
        # Calls without words have no content, and an empty answer is still one.
        "content": text if text or not (choice.calls or choice.refusals) else None,
        "refusal": choice.refusal or None,
    }
    if choice.reasonings:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in choice.calls
        ]
    return message


class ChatChunks:
    """Writes the chunks of one stream.

    What is the same in all of them is written once, so that a token costs the encoding of its text
    and little more.
    """

    def __init__(
        self,
        *,
        own_id: str,
        created: int,
        model: str,
        include_usage: bool,
    ) -> None:
        head = _encode(
            {"id": own_id, "object": "chat.completion.chunk", "created": created, "model": model}
        )
        self._head = b"data: " + head[:-1] + b',"choices":['
        # With include_usage every chunk has the field, and all but the last one have null there.
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._include_usage = include_usage
        self._opened: set[int] = set()

    def of(self, deltas: Sequence[Delta]) -> bytes:
        """Return the chunks for some pieces; a choice's first one says who speaks."""
        written: list[bytes] = []
        for delta in deltas:
            if delta.choice not in self._opened:
                self._opened.add(delta.choice)
                opening = b'{"role":"assistant","content":"","refusal":null}'
                if delta.tool_calls:
                    opening = b'{"role":"assistant","content":null,"refusal":null}'
                written.append(self._chunk(delta.choice, opening, None, None))
            if delta.text and not (delta.tool_calls or delta.refusal or delta.reasoning):
                content = b'{"content":' + _encode(delta.text) + b"}"
                written.append(
                    self._chunk(delta.choice, content, delta.finish_reason, delta.logprobs)
                )
            elif delta.text or delta.tool_calls or delta.refusal or delta.reasoning:
                written.append(
                    self._chunk(
                        delta.choice, _encode(_said(delta)), delta.finish_reason, delta.logprobs
                    )
                )
            elif delta.finish_reason or delta.logprobs is not None:
                written.append(
                    self._chunk(delta.choice, b"{}", delta.finish_reason, delta.logprobs)
                )
        return b"".join(written)

    def end(self, used: TokenUsage) -> bytes:
        """Return what comes after the last piece: the usage, if it was asked for."""
        if not self._include_usage:
            return b""
        return self._head + b'],"usage":' + _encode(chat_usage(used)) + b"}\n\n"

    def _chunk(
        self, choice: int, delta: bytes, finish: str | None, logprobs: msgspec.Raw | None
    ) -> bytes:
        return b"".join(
            (
                self._head,
                b'{"index":%d,"delta":' % choice,
                delta,
                b',"logprobs":',
                b"null" if logprobs is None else bytes(logprobs),
                b',"finish_reason":',
                b"null}" if finish is None else _encode(finish) + b"}",
                b"]",
                self._tail,
            )
        )


def _said(delta: Delta) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if delta.text:
        said["content"] = delta.text
    if delta.refusal:
        said["refusal"] = delta.refusal
    if delta.reasoning:
        said["reasoning_content"] = delta.reasoning
    if delta.tool_calls:
        said["tool_calls"] = [
            {
                "index": piece.index,
                **({"id": piece.id, "type": "function"} if piece.id else {}),
                "function": {
                    **({"name": piece.name} if piece.name else {}),
                    "arguments": piece.arguments,
                },
            }
            for piece in delta.tool_calls
        ]
    return said
