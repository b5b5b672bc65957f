"""What is too large is refused where it is made; what refers elsewhere says only ids."""

from __future__ import annotations

from uuid import uuid4

import pytest
from pydantic import SecretStr
from temporalio.api.common.v1 import Payload
from temporalio.converter import WorkflowSerializationContext
from temporalio.exceptions import ApplicationError

from settings import Settings
from tests.replay.recorded import PAYLOAD_KEYS
from workflows.client import data_converter
from workflows.failures import describe
from workflows.large_payloads import Claim, PayloadMissing, capped_converter, claim_in, resolve

ORGANISATION = uuid4()
CONTEXT = WorkflowSerializationContext(namespace="default", workflow_id="task-1")


class Memory:
    """A shelf that forgets when it is told to."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.workflows: list[str] = []

    async def put(self, workflow_id: str, data: bytes) -> tuple[object, str]:
        self.workflows.append(workflow_id)
        sha256 = f"{len(self.kept):064x}"
        self.kept[sha256] = data
        return ORGANISATION, sha256

    async def get(self, organisation_id: object, sha256: str) -> bytes | None:
        assert organisation_id == ORGANISATION
        return self.kept.get(sha256)


def _settings() -> Settings:
    return Settings(_env_file=None, payload_keys=SecretStr(PAYLOAD_KEYS), payload_inline_bytes=1024)


async def test_a_large_one_is_kept_encrypted_under_its_workflow_and_comes_back() -> None:
    shelf = Memory()
    converter = data_converter(_settings(), shelf).with_context(CONTEXT)
    small, large = await converter.encode(["secret", "secret " * 200])
    assert claim_in(small) is None
    assert claim_in(large) == Claim(ORGANISATION, "0" * 64)
    assert shelf.workflows == ["task-1"]
    assert b"secret" not in b"".join((*shelf.kept.values(), large.SerializeToString()))
    assert await converter.decode([small, large], [str, str]) == ["secret", "secret " * 200]
    # Bound to its workflow, wherever the reference is put.
    other = WorkflowSerializationContext(namespace="default", workflow_id="task-2")
    with pytest.raises(Exception, match="another workflow"):
        await data_converter(_settings(), shelf).with_context(other).decode([large], [str])
    shelf.kept.clear()
    with pytest.raises(PayloadMissing, match=f"{'0' * 64} of organisation {ORGANISATION}"):
        await resolve(shelf, large)


@pytest.mark.parametrize(
    "payload",
    [
        Payload(data=b"{}"),
        Payload(metadata={"encoding": b"json/protobuf", "messageType": b"x"}, data=b"{}"),
        *(
            Payload(
                metadata={
                    "encoding": b"json/protobuf",
                    "messageType": b"temporal.api.sdk.v1.ExternalStorageReference",
                },
                data=data,
            )
            for data in (b"", b"{}", b'{"claimData": {"organisation": "x"}}', b"\xff")
        ),
    ],
)
def test_what_is_no_reference_of_ours_is_none(payload: Payload) -> None:
    assert claim_in(payload) is None


def test_what_exceeds_the_cap_ends_a_task_with_its_size_and_step() -> None:
    converter = capped_converter(100)()
    assert len(converter.to_payloads(["x" * 98])[0].data) == 100
    with pytest.raises(ApplicationError) as refused:
        converter.to_payloads(["fine", "x" * 99])
    error = describe(refused.value, step=7)
    assert (error.code, error.step) == ("OVL-1010", 7)
    assert error.message == "a str of 101 bytes is more than the 100 that are passed on"
    assert refused.value.non_retryable
