"""Sealing with the payload keys what is kept outside of Temporal.

The same ring as the codec's (`workflows.codec`), AES-256-GCM with a random nonce; the key's id and
what the bytes are bound to are associated data, so that nothing opens elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from settings import Settings
from workflows.codec import KeyRing, PayloadRefused

__all__ = ["Sealer"]

_NONCE_BYTES = 12


class Sealer:
    """Seals and opens bytes.

    Args:
        settings: Where the key ring is; it is read when the first bytes are sealed.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ring: KeyRing | None = None
        self._ciphers: dict[str, AESGCM] = {}

    def seal(self, data: bytes, *bound_to: str) -> tuple[str, bytes]:
        """Return the key's id, and the sealed bytes.

        Raises:
            ValueError: The key ring is empty or malformed.
        """
        key_id = self._keys().primary
        nonce = os.urandom(_NONCE_BYTES)
        return key_id, nonce + self._ciphers[key_id].encrypt(
            nonce, data, _associated(key_id, *bound_to)
        )

    def open(self, key_id: str, sealed: bytes, *bound_to: str) -> bytes:
        """Return what was sealed.

        Raises:
            PayloadRefused: It was changed, bound to something else, or its key is not in the ring.
        """
        self._keys()
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise PayloadRefused(f"what was sealed needs key {key_id!r}, which is not in the ring")
        try:
            return cipher.decrypt(
                sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _associated(key_id, *bound_to)
            )
        except (InvalidTag, ValueError):
            raise PayloadRefused("what was sealed was changed, or belongs elsewhere") from None

    def keyed(self, digest: str) -> str:
        """Return a digest that nobody without the keys can find a text for by trying many.

        It is made with the oldest key of the ring, so that it stays the same when one is added.

        Raises:
            ValueError: The key ring is empty or malformed.
        """
        oldest = list(self._keys().keys.values())[-1]
        own = hmac.digest(oldest, b"overline request digest", hashlib.sha256)
        return hmac.new(own, digest.encode(), hashlib.sha256).hexdigest()

    def _keys(self) -> KeyRing:
        if self._ring is None:
            self._ring = KeyRing.parse(self._settings.payload_keys.get_secret_value())
            self._ciphers = {name: AESGCM(key) for name, key in self._ring.keys.items()}
        return self._ring


def _associated(*parts: str) -> bytes:
    """Length-prefixed, so that no two sequences give the same bytes; apart from the codec's."""
    return b"sealed" + b"".join(
        len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts
    )
