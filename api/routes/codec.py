"""Temporal's remote codec: the Web UI, and people with the scope, read payloads through it.

Two doors. With an API key: only payloads of the caller's own tasks and documents; the workflow a
payload belongs to is authenticated by its encryption, so it cannot be claimed. With the capability
token in the path: the operator's Web UI, which cannot send a key; it reads every payload of this
stack.
"""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from temporalio.api.common.v1 import Payload as ProtoPayload

from api.authentication import CodecCaller, parts_of
from api.json_body import json_body, request_body
from api.openapi import answers
from api.parts import Parts
from api.problems import ProblemError, invalid, not_found, unauthenticated
from settings import Settings
from store import audit, retrieval, tasks, webhooks
from store.identity import Principal
from workflows import errors
from workflows.codec import ENCODING, EncryptionCodec, KeyRing, PayloadRefused
from workflows.large_payloads import PayloadMissing, claim_in, resolve

__all__ = ["router"]

log = logging.getLogger("overline.api")


# Protobuf's own parser passes over characters that are not base64.
Base64 = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/_-]*={0,2}$")]


class Payload(BaseModel):
    """One Temporal payload in the JSON form of protocol buffers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metadata: dict[str, Base64] = Field(
        default_factory=dict, max_length=50, description="Metadata by name; values in base64."
    )
    data: Base64 = Field(default="", description="The data, in base64.")


class Payloads(BaseModel):
    """Payloads to decode or encode, and the answer: the same number in the same order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    payloads: tuple[Payload, ...] = Field(
        default=(), max_length=1000, description="The payloads, at most 1,000."
    )


router = APIRouter(tags=["codec"])

Body = Annotated[Payloads, Depends(json_body(Payloads))]
PartsOf = Annotated[Parts, Depends(parts_of)]


@router.post(
    "/codec/decode",
    responses=answers(404, body=True),
    openapi_extra=request_body(Payloads),
    summary="Decrypt payloads of your own tasks",
)
async def decode(caller: CodecCaller, parts: PartsOf, body: Body) -> Payloads:
    """Decrypt payloads. One of another tenant, or of none, makes the whole request a 403."""
    codec, protos = _codec(parts.settings), _parse(body)
    for proto in protos:
        claim = claim_in(proto)
        if claim is not None and claim.organisation_id != caller.organisation_id:
            raise ProblemError(errors.Forbidden, "A payload belongs to no workflow of yours.")
    protos = [await _resolved(parts, proto) for proto in protos]
    workflows = await _require_own(parts, caller, protos)
    clear = [_decrypt(codec, proto) for proto in protos]
    for workflow_id in sorted(workflows):
        await audit.append(
            parts.database,
            caller.organisation_id,
            actor=caller.key_prefix,
            action="payload.decoded",
            subject=workflow_id,
            detail={"payloads": len(protos)},
        )
    return _render(clear)


@router.post(
    "/codec/encode",
    responses=answers(body=True),
    openapi_extra=request_body(Payloads),
    summary="Encrypt payloads",
)
async def encode(caller: CodecCaller, parts: PartsOf, body: Body) -> Payloads:
    """Encrypt payloads that belong to no workflow yet, as a signal's arguments from the Web UI."""
    codec = _codec(parts.settings)
    return _render([codec.encrypt(proto) for proto in _parse(body)])


@router.post(
    "/codec/{capability}/decode",
    responses=answers(401, body=True, key=False),
    openapi_extra=request_body(Payloads),
    summary="Decrypt payloads for the Web UI",
)
async def decode_for_web_ui(capability: str, parts: PartsOf, body: Body) -> Payloads:
    """Decrypt payloads for whoever holds the capability token.

    A payload that Overline did not encrypt (a tracing header, a reference to a large payload) is
    returned as it came: the Web UI has it already, and fetches what it refers to by `download`.
    """
    _require_capability(parts.settings, capability)
    codec = _codec(parts.settings)
    return _render(
        [
            _decrypt(codec, proto) if proto.metadata.get("encoding") == ENCODING else proto
            for proto in _parse(body)
        ]
    )


@router.post(
    "/codec/{capability}/download",
    responses=answers(401, 404, body=True, key=False),
    openapi_extra=request_body(Payloads),
    summary="Fetch and decrypt large payloads for the Web UI",
)
async def download_for_web_ui(capability: str, parts: PartsOf, body: Body) -> Payloads:
    """Decrypt what references in a history point to, for whoever holds the capability token."""
    _require_capability(parts.settings, capability)
    codec = _codec(parts.settings)
    fetched = [await _resolved(parts, proto) for proto in _parse(body)]
    return _render(
        [
            _decrypt(codec, proto) if proto.metadata.get("encoding") == ENCODING else proto
            for proto in fetched
        ]
    )


@router.post(
    "/codec/{capability}/encode",
    responses=answers(401, body=True, key=False),
    openapi_extra=request_body(Payloads),
    summary="Encrypt payloads for the Web UI",
)
async def encode_for_web_ui(capability: str, parts: PartsOf, body: Body) -> Payloads:
    """Encrypt payloads for whoever holds the capability token."""
    _require_capability(parts.settings, capability)
    codec = _codec(parts.settings)
    return _render([codec.encrypt(proto) for proto in _parse(body)])


def _require_capability(settings: Settings, given: str) -> None:
    expected = settings.codec_token.get_secret_value() if settings.codec_token else ""
    # Compared also when none is set, so that the time tells nothing either way.
    equal = hmac.compare_digest(given.encode(), expected.encode())
    if not expected or not equal:
        raise unauthenticated()


def _codec(settings: Settings) -> EncryptionCodec:
    ring = KeyRing.parse(settings.payload_keys.get_secret_value())
    return EncryptionCodec(ring, settings.temporal_namespace)


def _decrypt(codec: EncryptionCodec, proto: ProtoPayload) -> ProtoPayload:
    try:
        return codec.decrypt(proto)
    except PayloadRefused:
        raise ProblemError(
            errors.InvalidRequest,
            "A payload is not one of this namespace's, was changed, or needs a key that is gone.",
        ) from None


async def _resolved(parts: Parts, proto: ProtoPayload) -> ProtoPayload:
    """Fetch what a reference points to; a payload that is none stays as it is."""
    try:
        return await resolve(parts.shelf, proto)
    except PayloadMissing:
        raise not_found("payload") from None


def _parse(body: Payloads) -> list[ProtoPayload]:
    protos = []
    for index, payload in enumerate(body.payloads):
        try:
            protos.append(ParseDict(payload.model_dump(), ProtoPayload()))
        except (ParseError, ValueError):
            raise invalid(
                f"/payloads/{index}", "wrong_form", "Data and metadata must be base64."
            ) from None
    return protos


def _render(protos: Sequence[ProtoPayload]) -> Payloads:
    rendered: list[dict[str, Any]] = [MessageToDict(proto) for proto in protos]
    return Payloads(payloads=tuple(Payload.model_validate(item) for item in rendered))


_WORKFLOW = re.compile(
    r"(task|ingest|webhook)-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:-\d+)?"
)


async def _require_own(parts: Parts, caller: Principal, protos: Sequence[ProtoPayload]) -> set[str]:
    """Return the payloads' workflows, all of which must be the caller's organisation's.

    What a payload says of its workflow is true if it decrypts: the id is bound to the ciphertext.

    Raises:
        ProblemError: One is not (403).
    """
    workflows = {
        proto.metadata.get("workflow-id", b"").decode(errors="replace") for proto in protos
    }
    for workflow_id in workflows:
        match = _WORKFLOW.fullmatch(workflow_id)
        if match is None or not await _owns(parts, caller, match[1], UUID(match[2])):
            raise ProblemError(errors.Forbidden, "A payload belongs to no workflow of yours.")
    return workflows


async def _owns(parts: Parts, caller: Principal, kind: str, subject: UUID) -> bool:
    organisation = caller.organisation_id
    if kind == "task":
        return await tasks.get_task(parts.database, organisation, subject) is not None
    if kind == "webhook":
        return await webhooks.is_own(parts.database, organisation, subject)
    return await retrieval.get_document(parts.database, organisation, subject) is not None
