"""Payload encryption: Temporal stores ciphertext only.

AES-256-GCM with a random 96-bit nonce (NIST SP 800-38D, section 8.2.2: at most 2**32 payloads a
key, so rotate before). The key id, the namespace and the workflow id travel in the payload's
metadata and are bound as associated data: a payload moved to another workflow or namespace, or
one whose bits or key id were changed, does not decrypt. A payload that is not encrypted is
refused, but for one fixed mark of the server's, so that nobody can slip clear text past the reader.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

__all__ = ["ENCODING", "EncryptionCodec", "KeyRing", "PayloadRefused"]

ENCODING = b"binary/overline-aes256gcm"
_NONCE_BYTES = 12
# The only payload that the server itself writes: why an activity that waited for its next attempt
# was cancelled. It says nothing, so letting it pass tells and allows nothing; refusing it would
# stop the workflow for good.
_SERVERS_OWN = Payload(metadata={"encoding": b"json/plain"}, data=b'"ACTIVITY_ID_NOT_STARTED"')


_SCHEDULED = re.compile(r"(housekeeping|scheduled-[0-9a-f-]{36}-[0-9a-f-]{36})(?:-|$)")


class PayloadRefused(Exception):
    """A payload is not ours, was tampered with, or needs a key that is not in the ring."""


@dataclass(frozen=True)
class KeyRing:
    """Keys by id; the first encrypts, all decrypt."""

    primary: str
    keys: dict[str, bytes] = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """Parse `id:base64,id:base64`.

        Raises:
            ValueError: No key, a key id given twice, or a key that is not 32 bytes.
        """
        keys: dict[str, bytes] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, encoded = part.partition(":")
            try:
                key = base64.b64decode(encoded, validate=True)
            except binascii.Error:
                key = b""
            if not name or len(key) != 32 or name in keys:
                raise ValueError(
                    "OVERLINE_PAYLOAD_KEYS must be `id:base64,…` with distinct ids and 32-byte keys"
                )
            keys[name] = key
        if not keys:
            raise ValueError(
                "OVERLINE_PAYLOAD_KEYS is empty: `overline up` generates one; for a cluster, "
                "set `k1:$(openssl rand -base64 32)`"
            )
        return cls(primary=next(iter(keys)), keys=keys)


class EncryptionCodec(PayloadCodec, WithSerializationContext):
    """Encrypts every payload on its way to Temporal, and decrypts it on its way back."""

    def __init__(self, ring: KeyRing, namespace: str, workflow_id: str | None = None) -> None:
        """Bind the codec to a key ring, a namespace and, inside a conversion, a workflow."""
        self._ring = ring
        self._ciphers = {name: AESGCM(key) for name, key in ring.keys.items()}
        self._namespace = namespace
        self._workflow_id = workflow_id

    def with_context(self, context: SerializationContext) -> EncryptionCodec:
        """Return a codec that binds payloads to the workflow of `context`."""
        if isinstance(context, WorkflowSerializationContext | ActivitySerializationContext):
            bound = object.__new__(EncryptionCodec)
            bound._ring = self._ring
            bound._ciphers = self._ciphers
            bound._namespace = context.namespace
            bound._workflow_id = _bound_to(context.workflow_id)
            return bound
        return self

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt payloads."""
        return [self.encrypt(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt payloads.

        Raises:
            PayloadRefused: See the class.
        """
        return [self.decrypt(payload) for payload in payloads]

    def encrypt(self, payload: Payload) -> Payload:
        """Encrypt one payload, its own metadata included."""
        key_id, workflow_id = self._ring.primary, self._workflow_id or ""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._ciphers[key_id].encrypt(
            nonce,
            payload.SerializeToString(deterministic=True),
            _associated(key_id, self._namespace, workflow_id),
        )
        return Payload(
            metadata={
                "encoding": ENCODING,
                "key-id": key_id.encode(),
                "namespace": self._namespace.encode(),
                "workflow-id": workflow_id.encode(),
            },
            data=nonce + sealed,
        )

    def decrypt(self, payload: Payload) -> Payload:
        """Decrypt one payload.

        Raises:
            PayloadRefused: See the class.
        """
        if payload == _SERVERS_OWN:
            return payload
        if payload.metadata.get("encoding") != ENCODING:
            raise PayloadRefused("payload is not encrypted by Overline")
        key_id = payload.metadata.get("key-id", b"").decode(errors="replace")
        namespace = payload.metadata.get("namespace", b"").decode(errors="replace")
        workflow_id = payload.metadata.get("workflow-id", b"").decode(errors="replace")
        if namespace != self._namespace:
            raise PayloadRefused("payload belongs to another namespace")
        if self._workflow_id is not None and workflow_id != self._workflow_id:
            raise PayloadRefused("payload belongs to another workflow")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise PayloadRefused(f"payload needs key {key_id!r}, which is not in the ring")
        try:
            clear = cipher.decrypt(
                payload.data[:_NONCE_BYTES],
                payload.data[_NONCE_BYTES:],
                _associated(key_id, namespace, workflow_id),
            )
        except (InvalidTag, ValueError):
            raise PayloadRefused("payload was changed after it was encrypted") from None
        return Payload.FromString(clear)


def _bound_to(workflow_id: str | None) -> str | None:
    """Return the workflow that payloads are bound to: all times of a schedule count as one.

    Temporal hands the last time's result to the next one, whose id differs in its time only.
    """
    if workflow_id is not None and (found := _SCHEDULED.match(workflow_id)):
        return found.group(1)
    return workflow_id


def _associated(key_id: str, namespace: str, workflow_id: str) -> bytes:
    """Length-prefixed, so that no two triples give the same bytes."""
    parts = (key_id.encode(), namespace.encode(), workflow_id.encode())
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
