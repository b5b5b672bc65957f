"""Digests of a conversation: what the cache key needs of it, without the conversation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from workflows.contracts import Message

__all__ = ["digest_of", "extend", "start"]


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def start(system: str | None, messages: Sequence[Message]) -> tuple[str, int]:
    """Return the digest and the length in characters of a conversation that was submitted."""
    canonical = json.dumps(
        [system, [[message.role, message.content, message.pinned] for message in messages]],
        ensure_ascii=True,
        separators=(",", ":"),
    )
    length = len(system or "") + sum(len(message.content) for message in messages)
    return digest_of(canonical), length


def extend(digest: str, part: str) -> str:
    """Return the digest of a conversation after something with digest `part` was added."""
    return hashlib.sha256(f"{digest}:{part}".encode()).hexdigest()
