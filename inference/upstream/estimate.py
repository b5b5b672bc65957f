"""Tokens without a tokenizer: the likely number, for a ledger; the most there can be, for a hold.

Every tokenizer in use works on bytes or falls back to them, so a text has at most as many tokens
as it has bytes in UTF-8. That bound needs no knowledge of the model. The likely number is the rule
of thumb for byte-pair vocabularies: four characters of English a token, one of other scripts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

__all__ = ["TextCount", "estimate_prompt", "estimate_texts", "most_tokens"]

# Separators and the beginning of the answer, as chat templates write them; roles are counted.
_AROUND_MESSAGE = 3
# Dearest picture of the vendors' tables; its address or bytes say nothing about its tokens.
_MOST_PER_PICTURE = 40_000
_LIKELY_PER_PICTURE = 1_000


class TextCount:
    """Adds up the likely tokens of a text that comes in pieces."""

    __slots__ = ("_ascii", "_other")

    def __init__(self) -> None:
        self._ascii = 0
        self._other = 0

    def add(self, text: str) -> None:
        """Count a piece."""
        if text.isascii():
            self._ascii += len(text)
        else:
            plain = len(text.encode("ascii", "ignore"))
            self._ascii += plain
            self._other += len(text) - plain

    @property
    def tokens(self) -> int:
        """Likely tokens of all pieces together."""
        return math.ceil(self._ascii / 4) + self._other


def estimate_prompt(messages: Any, parameters: Any = None) -> int:
    """Return the likely number of tokens of a request."""
    read = _plain(messages)
    count = TextCount()
    texts, pictures, number = _walk(read)
    for text in texts:
        count.add(text)
    tools = (parameters or {}).get("tools")
    if tools:
        count.add(_json(tools).decode())
    return count.tokens + _AROUND_MESSAGE * number + _LIKELY_PER_PICTURE * pictures


def estimate_texts(texts: Sequence[str]) -> int:
    """Return the likely number of tokens of texts that are read each by itself."""
    total = 0
    for text in texts:
        count = TextCount()
        count.add(text)
        total += count.tokens
    return total


def most_tokens(
    messages: Any, parameters: Any = None, *, around_message: int = 8, around_prompt: int = 16
) -> int:
    """Return a number of tokens that the prompt of a request cannot exceed, text and pictures.

    Args:
        messages: The conversation.
        parameters: What else is asked; tools and forms are read, too.
        around_message: Most tokens that a chat template puts around a message.
        around_prompt: Most that it puts around all of them.
    """
    read = _plain(messages)
    texts, pictures, number = _walk(read)
    total = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    for name in ("tools", "functions", "response_format", "tool_choice"):
        told = (parameters or {}).get(name)
        if told:
            total += len(_json(told))
    return total + around_message * number + around_prompt + _MOST_PER_PICTURE * pictures


def _plain(messages: Any) -> Any:
    return msgspec.json.decode(messages) if isinstance(messages, msgspec.Raw) else messages


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _walk(messages: Any) -> tuple[list[str], int, int]:
    """Return every text of the messages (names of fields aside), pictures, and messages."""
    texts: list[str] = []
    pictures = 0
    number = 0
    waiting: list[Any] = []
    for message in messages:
        number += 1
        waiting.append(message)
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            if value.get("type") in ("image_url", "input_image", "image"):
                pictures += 1
            else:
                # A tool call is written with separators of its own.
                number += value.get("type") == "function"
                waiting.extend(value.values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
    return texts, pictures, number
