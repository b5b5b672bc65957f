"""The contract's text form, and Triton's errors told apart."""

from __future__ import annotations

import re

import grpc
import pytest

from inference.contract import EMBED, GENERATE, config_pbtxt
from inference.errors import EngineFailed, EngineUnavailable, RequestRefused
from inference.models.registry import DEFAULT_MODELS, MODELS, ROUTES, find
from inference.wire import error_from_message, error_from_status


def test_config_pbtxt() -> None:
    text = config_pbtxt("m", GENERATE, {"weights": 'a "b"\\c'})
    assert 'name: "m"' in text
    assert "max_batch_size: 0" in text
    assert "decoupled: true" in text
    assert "decoupled: false" in config_pbtxt("e", EMBED, {})
    assert len(re.findall(r"^input ", text, re.M)) == len(GENERATE.inputs)
    assert 'string_value: "a \\"b\\"\\\\c"' in text
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize(
    ("message", "kind", "code"),
    [
        ("OVL-ENGINE-prompt_too_long: 9 tokens", RequestRefused, "prompt_too_long"),
        ("failed: OVL-ENGINE-engine_failed: broke", EngineFailed, "engine_failed"),
        ("Stub process 'm_0_0' is not healthy.", EngineUnavailable, "unhealthy"),
        ("Request for unknown model: 'm' is not found", EngineUnavailable, "not_ready"),
        ("unexpected inference input 'x'", RequestRefused, "contract_mismatch"),
        ("something else", EngineFailed, "engine_failed"),
    ],
)
def test_errors_in_a_stream(message: str, kind: type[Exception], code: str) -> None:
    error = error_from_message(message)
    assert type(error) is kind
    assert error.code == code
    assert error.retryable == (kind is not RequestRefused)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.UNAVAILABLE, "connection_lost"),
        (grpc.StatusCode.CANCELLED, "connection_lost"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "deadline"),
    ],
)
def test_grpc_statuses(status: grpc.StatusCode, code: str) -> None:
    nothing = grpc.aio.Metadata()
    error = error_from_status(grpc.aio.AioRpcError(status, nothing, nothing, "details"))
    assert isinstance(error, EngineUnavailable)
    assert error.code == code


def test_the_registry_is_consistent() -> None:
    assert set(DEFAULT_MODELS) == {"smollm2-135m-instruct", "gemma-3-270m", "all-minilm-l6-v2"}
    for route in ROUTES:
        assert all(candidate["model"] in MODELS for candidate in route.candidates)
    for model in MODELS.values():
        assert model.kind == "embed" or model.max_output_tokens < model.context_window
        assert (model.dimensions > 0) == (model.kind == "embed")
    with pytest.raises(KeyError, match="smollm2-135m-instruct"):
        find("nobody")
