"""Triton's protobufs: requests built, responses read, errors told apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from inference.contract import ERROR_PREFIX, GENERATE, REFUSALS, Contract, Tensor
from inference.errors import EngineError, EngineFailed, EngineUnavailable, RequestRefused
from inference.messages import Final, GenerationChunk, MeterReading, Timings

FINAL_PARAMETER = "triton_final_response"

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # A frozen server is noticed in seconds only if ping_timeout_ms is set as well: gRPC's
    # default of a minute overrides keepalive_timeout_ms.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


def build_request(
    triton_model: str,
    request_id: str,
    tensors: Sequence[tuple[Tensor, list[Any]]],
    *,
    stream: bool = True,
) -> Any:
    """A ModelInferRequest.

    Args:
        triton_model: Name of the model.
        request_id: Sent along; Triton gives it back.
        tensors: Inputs with their values.
        stream: Asks for an empty final response, so that a model that ends separately from its
            last data is seen to end.
    """
    request = service_pb2.ModelInferRequest(model_name=triton_model, id=request_id)
    for tensor, values in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.dtype, shape=[len(values)])
        request.raw_input_contents.append(tensor.pack(values))
    if stream:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request


def read_outputs(response: Any, contract: Contract = GENERATE) -> dict[str, list[Any]]:
    """The outputs of a ModelInferResponse, by name, flattened."""
    raw = response.raw_output_contents
    return {
        output.name: contract.output(output.name).unpack(raw[n])
        for n, output in enumerate(response.outputs)
    }


def read_chunk(response: Any) -> GenerationChunk:
    """A chunk out of a ModelInferResponse of a generation."""
    outputs = read_outputs(response)
    text = outputs.get("text")
    return GenerationChunk(
        token_ids=outputs.get("token_ids", []),
        text=text[0].decode() if text else "",
        final=_final(outputs) if "finish_reason" in outputs else None,
    )


def _final(outputs: dict[str, list[Any]]) -> Final:
    def number(name: str) -> int:
        values = outputs.get(name)
        return int(values[0]) if values else 0

    stop_reason = outputs.get("stop_reason", [b""])[0].decode()
    return Final(
        finish_reason=outputs["finish_reason"][0].decode(),
        stop_reason=stop_reason or None,
        prompt_tokens=number("prompt_tokens"),
        completion_tokens=number("completion_tokens"),
        cached_tokens=number("cached_tokens"),
        timings=Timings(
            queue_ms=number("queue_us") / 1000,
            first_token_ms=number("first_token_us") / 1000,
            total_ms=number("total_us") / 1000,
        ),
    )


def read_meter(response: Any) -> MeterReading | None:
    """A meter reading; None when the model never saw the request id."""
    outputs = read_outputs(response)
    state = outputs["meter_state"][0].decode()
    if state == "unknown":
        return None
    return MeterReading(
        state=state,
        prompt_tokens=outputs["prompt_tokens"][0],
        cached_tokens=outputs["cached_tokens"][0],
        completion_tokens=outputs["completion_tokens"][0],
        requests=outputs["meter_requests"][0],
    )


def is_final(response: Any) -> bool:
    """Whether Triton marked this response as the last of its request."""
    parameter = response.parameters.get(FINAL_PARAMETER)
    return parameter is not None and bool(parameter.bool_param)


def error_from_message(message: str) -> EngineError:
    """The error behind the text Triton puts into a stream.

    Ours carry a code; Triton's own are told apart by their words, which is all it gives.
    """
    at = message.find(ERROR_PREFIX)
    if at >= 0:
        code, _, rest = message[at + len(ERROR_PREFIX) :].partition(": ")
        return RequestRefused(rest, code) if code in REFUSALS else EngineFailed(rest, code)
    lowered = message.lower()
    if "not healthy" in lowered or "stub process" in lowered:
        return EngineUnavailable(message, "unhealthy")
    if "unknown model" in lowered or "not ready" in lowered or "no available versions" in lowered:
        return EngineUnavailable(message, "not_ready")
    if "unexpected" in lowered or "data-type" in lowered or "shape" in lowered:
        return RequestRefused(message, "contract_mismatch")
    return EngineFailed(message, "engine_failed")


def error_from_status(error: grpc.aio.AioRpcError) -> EngineError:
    """The error behind a gRPC status."""
    code = error.code()
    details = error.details() or code.name
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return EngineUnavailable(f"the deadline passed: {details}", "deadline")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        if "unknown model" in details.lower():
            return EngineUnavailable(details, "not_ready")
        # Ours to cancel we never read on: a CANCELLED that is read came from the other side.
        return EngineUnavailable(details, "connection_lost")
    return error_from_message(details)
