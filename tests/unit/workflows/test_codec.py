"""Payload encryption refuses everything that is not exactly what was encrypted."""

import asyncio
import base64
import os
from uuid import UUID

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import WorkflowSerializationContext

from settings import Settings
from workflows.client import data_converter
from workflows.codec import ENCODING, EncryptionCodec, KeyRing, PayloadRefused

K1 = base64.b64encode(os.urandom(32)).decode()
K2 = base64.b64encode(os.urandom(32)).decode()
CLEAR = Payload(metadata={"encoding": b"json/plain"}, data=b'"what the caller wrote"')


def codec(keys: str = f"k1:{K1}", namespace: str = "default", workflow: str | None = "task-1"):
    bare = EncryptionCodec(KeyRing.parse(keys), namespace)
    if workflow is None:
        return bare
    return bare.with_context(
        WorkflowSerializationContext(namespace=namespace, workflow_id=workflow)
    )


def test_round_trip_hides_content_and_encoding():
    (sealed,) = asyncio.run(codec().encode([CLEAR]))
    assert sealed.metadata["encoding"] == ENCODING
    assert b"caller" not in sealed.SerializeToString()
    assert b"json/plain" not in sealed.SerializeToString()
    assert asyncio.run(codec().decode([sealed])) == [CLEAR]


def test_two_encryptions_differ():
    assert codec().encrypt(CLEAR).data != codec().encrypt(CLEAR).data


def test_old_keys_decrypt_after_rotation():
    sealed = codec(f"k1:{K1}").encrypt(CLEAR)
    rotated = codec(f"k2:{K2},k1:{K1}")
    assert rotated.decrypt(sealed) == CLEAR
    assert rotated.encrypt(CLEAR).metadata["key-id"] == b"k2"


def test_codec_endpoint_reads_any_workflow_of_its_namespace():
    assert codec(workflow=None).decrypt(codec(workflow="task-7").encrypt(CLEAR)) == CLEAR


@pytest.mark.parametrize(
    "reader",
    [
        pytest.param({"workflow": "task-2"}, id="another workflow"),
        pytest.param({"namespace": "other"}, id="another namespace"),
        pytest.param({"keys": f"k1:{K2}"}, id="another key under the same id"),
        pytest.param({"keys": f"k2:{K2}"}, id="a key that is not in the ring"),
    ],
)
def test_refuses_what_was_meant_for_another(reader):
    sealed = codec().encrypt(CLEAR)
    with pytest.raises(PayloadRefused):
        codec(**reader).decrypt(sealed)


def test_refuses_a_payload_relabelled_for_this_workflow():
    sealed = codec(workflow="task-1").encrypt(CLEAR)
    sealed.metadata["workflow-id"] = b"task-2"
    with pytest.raises(PayloadRefused):
        codec(workflow="task-2").decrypt(sealed)


def test_refuses_clear_text():
    with pytest.raises(PayloadRefused):
        codec().decrypt(CLEAR)


def test_the_servers_own_mark_passes_and_nothing_like_it():
    mark = Payload(metadata={"encoding": b"json/plain"}, data=b'"ACTIVITY_ID_NOT_STARTED"')
    assert codec().decrypt(mark) == mark
    for other in (
        Payload(metadata={"encoding": b"json/plain"}, data=b'"ACTIVITY_ID_STARTED"'),
        Payload(metadata={"encoding": b"binary/plain"}, data=mark.data),
        Payload(metadata={"encoding": b"json/plain", "more": b"x"}, data=mark.data),
        Payload(data=mark.data),
    ):
        with pytest.raises(PayloadRefused):
            codec().decrypt(other)


def test_refuses_one_flipped_bit_anywhere():
    sealed = codec().encrypt(CLEAR)
    for position in range(len(sealed.data)):
        broken = Payload()
        broken.CopyFrom(sealed)
        data = bytearray(sealed.data)
        data[position] ^= 1
        broken.data = bytes(data)
        with pytest.raises(PayloadRefused):
            codec().decrypt(broken)


def test_refuses_a_truncated_payload():
    sealed = codec().encrypt(CLEAR)
    sealed.data = sealed.data[:5]
    with pytest.raises(PayloadRefused):
        codec().decrypt(sealed)


@pytest.mark.parametrize("ring", ["", "k1", "k1:abc", f"k1:{K1},k1:{K2}", f":{K1}", "k1:AAAA"])
def test_refuses_a_bad_key_ring(ring):
    with pytest.raises(ValueError, match="OVERLINE_PAYLOAD_KEYS"):
        KeyRing.parse(ring)


def test_a_converter_is_bound_once_a_workflow_and_only_to_it():
    settings = Settings(payload_keys=f"k1:{K1}")
    free = data_converter(settings)
    one = free.with_context(WorkflowSerializationContext(namespace="default", workflow_id="task-1"))
    two = free.with_context(WorkflowSerializationContext(namespace="default", workflow_id="task-2"))
    assert one is free.with_context(
        WorkflowSerializationContext(namespace="default", workflow_id="task-1")
    )
    sealed = asyncio.run(one.encode(["secret"]))
    assert asyncio.run(one.decode(sealed, [str])) == ["secret"]
    assert asyncio.run(free.decode(sealed, [str])) == ["secret"]
    with pytest.raises(PayloadRefused):
        asyncio.run(two.decode(sealed, [str]))


def test_the_times_of_one_schedule_share_their_payloads_and_no_other_does():
    """Temporal hands the last time's result to the next one."""
    one, other = (f"scheduled-{UUID(int=1)}-{UUID(int=number)}" for number in (2, 3))
    sealed = codec(workflow=f"{one}-2026-12-01T05:59:49Z").encrypt(CLEAR)
    assert codec(workflow=f"{one}-2026-12-01T06:00:02Z").decrypt(sealed) == CLEAR
    for stranger in (f"{other}-2026-12-01T06:00:02Z", f"task-{UUID(int=2)}"):
        with pytest.raises(PayloadRefused):
            codec(workflow=stranger).decrypt(sealed)
