"""Finds, fetches and decrypts the payloads in a history, wherever Temporal's messages hold one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload

from workflows.codec import ENCODING, EncryptionCodec
from workflows.large_payloads import Shelf, claim_in, resolve

__all__ = ["decrypt_in_place", "fetch_in_place", "is_map", "payloads_in"]

#: Ids, names and amounts, in clear by Temporal's design.
_PLAIN_BY_DESIGN = frozenset({"search_attributes"})


def payloads_in(message: Message) -> Iterator[Payload]:
    """Yield every payload of a message that may hold content, as it can be changed in place."""
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE or field.name in _PLAIN_BY_DESIGN:
            continue
        if is_map(field):
            values = [item for item in value.values() if isinstance(item, Message)]
        else:
            values = [value] if isinstance(value, Message) else value
        for each in values:
            if isinstance(each, Payload):
                yield each
            else:
                yield from payloads_in(each)


async def fetch_in_place(message: Message, shelf: Shelf) -> None:
    """Put every payload that was too large for the history in the place of its reference.

    Raises:
        PayloadMissing: One is not there.
    """
    for payload in payloads_in(message):
        if claim_in(payload) is not None:
            payload.CopyFrom(await resolve(shelf, payload))


def decrypt_in_place(message: Message, codec: EncryptionCodec) -> None:
    """Decrypt every encrypted payload of a message; what was never encrypted stays.

    Raises:
        PayloadRefused: A payload needs a key that is not in the ring, or was changed.
    """
    for payload in payloads_in(message):
        if payload.metadata.get("encoding") == ENCODING:
            payload.CopyFrom(codec.decrypt(payload))


def is_map(field: Any) -> bool:
    """Whether a field is a map."""
    return bool(field.message_type.GetOptions().map_entry)
