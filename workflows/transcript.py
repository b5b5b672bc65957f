"""Digests of a conversation: what the cache key needs of it, without the conversation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from workflows.contracts import Message

__all__ = ["KEPT", "digest_of", "extend", "said", "start"]

# Takes the place of a digest where an answer becomes a turn of the conversation.
KEPT = "kept"


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


def said(role: str, text: str) -> str:
    """Return the digest of a message that came after the conversation was submitted."""
    return digest_of(json.dumps([role, text], ensure_ascii=True, separators=(",", ":")))
