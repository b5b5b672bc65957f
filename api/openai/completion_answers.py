"""Text completions as they are sent: whole, or in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from api.openai.usage import chat_usage
from inference.answers import Answer
from inference.upstream.messages import Delta
from inference.usage import TokenUsage

__all__ = ["CompletionChunks", "text_completion"]

_encode = msgspec.json.encode


def text_completion(
    answer: Answer,
    *,
    own_id: str,
    created: int,
    model: str,
    used: TokenUsage,
    echo: str = "",
) -> dict[str, Any]:
    """Return the document of a whole completion; `echo` is what stands before it."""
    return {
        "id": own_id,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": [
            {
                "index": number,
                "text": echo + choice.text,
                "logprobs": None,
                "finish_reason": choice.finish_reason or "stop",
            }
            for number, choice in enumerate(answer.choices)
        ],
        "usage": chat_usage(used),
    }


class CompletionChunks:
    """Writes the chunks of one stream."""

    def __init__(
        self,
        *,
        own_id: str,
        created: int,
        model: str,
        include_usage: bool,
        echo: str = "",
    ) -> None:
        self._same = {"id": own_id, "object": "text_completion", "created": created, "model": model}
        self._include_usage = include_usage
        self._echo = echo

    def of(self, deltas: Sequence[Delta]) -> bytes:
        """Return the chunks for some pieces."""
        written: list[bytes] = []
        for delta in deltas:
            text, self._echo = self._echo + delta.text, ""
            if text or delta.finish_reason:
                choice = {
                    "index": delta.choice,
                    "text": text,
                    "logprobs": None,
                    "finish_reason": delta.finish_reason,
                }
                written.append(self._event([choice], None))
        return b"".join(written)

    def end(self, used: TokenUsage) -> bytes:
        """Return what comes after the last piece: the usage, if it was asked for."""
        return self._event([], chat_usage(used)) if self._include_usage else b""

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
        document: dict[str, Any] = {**self._same, "choices": choices}
        if self._include_usage:
            document["usage"] = usage
        return b"data: " + _encode(document) + b"\n\n"
