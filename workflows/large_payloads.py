"""Payloads too large for a history: kept elsewhere, encrypted, with a reference in their place.

Where they are kept is not known here: whoever connects brings a shelf. The tenant is found by the
workflow a payload is bound to, which its encryption vouches for. What is larger than the cap is
refused before it is scheduled or reported, with an error that no retry repeats: Temporal itself
would take such a workflow task again and again, and never end.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol
from uuid import UUID

from google.protobuf.json_format import Parse, ParseError
from temporalio.api.common.v1 import Payload
from temporalio.api.sdk.v1 import ExternalStorageReference
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    ExternalStorage,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)
from temporalio.exceptions import ApplicationError

from workflows.errors import PayloadTooLarge

__all__ = [
    "REFERENCE_TYPE",
    "Claim",
    "PayloadMissing",
    "Shelf",
    "capped_converter",
    "claim_in",
    "large_payloads",
    "resolve",
]

DRIVER = "overline-blobs"
REFERENCE_TYPE = ExternalStorageReference.DESCRIPTOR.full_name.encode()


class PayloadMissing(Exception):
    """What a history refers to is not kept any more, or not in the database that was asked."""


class Shelf(Protocol):
    """Where large payloads are kept."""

    async def put(self, workflow_id: str, data: bytes) -> tuple[UUID, str]:
        """Keep bytes of a workflow; return its organisation and their SHA-256 as hex."""

    async def get(self, organisation_id: UUID, sha256: str) -> bytes | None:
        """Return the bytes; none when they are not there."""


@dataclass(frozen=True)
class Claim:
    """What a reference says: ids only, it stands in clear in the history."""

    organisation_id: UUID
    sha256: str


class _Blobs(StorageDriver):
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def name(self) -> str:
        return DRIVER

    async def store(
        self, context: StorageDriverStoreContext, payloads: Sequence[Payload]
    ) -> list[StorageDriverClaim]:
        claims = []
        for payload in payloads:
            organisation, sha256 = await self._shelf.put(
                payload.metadata.get("workflow-id", b"").decode(),
                payload.SerializeToString(deterministic=True),
            )
            claims.append(StorageDriverClaim({"organisation": str(organisation), "sha256": sha256}))
        return claims

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        return [
            await _fetch(
                self._shelf,
                Claim(UUID(claim.claim_data["organisation"]), claim.claim_data["sha256"]),
            )
            for claim in claims
        ]


def large_payloads(shelf: Shelf, *, from_bytes: int) -> ExternalStorage:
    """Return the storage of payloads from a size on.

    Args:
        shelf: Where they are kept.
        from_bytes: Smallest payload that is kept there, encrypted.
    """
    return ExternalStorage(drivers=[_Blobs(shelf)], payload_size_threshold=from_bytes)


def claim_in(payload: Payload) -> Claim | None:
    """Return what a payload refers to, if it is a reference."""
    if payload.metadata.get("messageType") != REFERENCE_TYPE:
        return None
    try:
        reference = Parse(payload.data, ExternalStorageReference())
        said = reference.claim_data
        return Claim(UUID(said["organisation"]), str(said["sha256"]))
    except (ParseError, ValueError):
        return None


async def resolve(shelf: Shelf, payload: Payload) -> Payload:
    """Return what a payload refers to, still encrypted; itself when it is no reference.

    Raises:
        PayloadMissing: It is not there.
    """
    claim = claim_in(payload)
    return payload if claim is None else await _fetch(shelf, claim)


async def _fetch(shelf: Shelf, claim: Claim) -> Payload:
    data = await shelf.get(claim.organisation_id, claim.sha256)
    if data is None:
        raise PayloadMissing(
            f"the payload {claim.sha256} of organisation {claim.organisation_id} is not in this "
            "database: it was collected with its history, or database and Temporal are not of the "
            "same backup"
        )
    return Payload.FromString(data)


class _Capped(PydanticPayloadConverter):
    most_bytes: ClassVar[int]

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        payloads = super().to_payloads(values)
        for payload, value in zip(payloads, values, strict=True):
            if len(payload.data) > self.most_bytes:
                raise ApplicationError(
                    f"a {type(value).__name__} of {len(payload.data):,} bytes is more than the "
                    f"{self.most_bytes:,} that are passed on",
                    {"bytes": len(payload.data), "most_bytes": self.most_bytes},
                    type=PayloadTooLarge.type(),
                    non_retryable=True,
                )
        return payloads


@functools.lru_cache
def capped_converter(most_bytes: int) -> type[PydanticPayloadConverter]:
    """Return the converter's class; it refuses what is larger than `most_bytes`, in clear."""
    return type("CappedPayloadConverter", (_Capped,), {"most_bytes": most_bytes})
