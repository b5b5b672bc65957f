"""The one definition of what goes to a model under Triton and what comes back.

`config.pbtxt` is generated from it, the client packs requests with it and the model unpacks
them with it, so the three cannot drift apart. It runs on both sides of the wire: in the
harness and in the engine's environment, hence only the standard library and NumPy.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

Dtype = Literal["INT32", "INT64", "FP32", "BOOL", "BYTES"]

_NUMPY: dict[Dtype, Any] = {
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP32": np.dtype("<f4"),
    "BOOL": np.dtype("bool"),
}

ERROR_PREFIX = "OVL-ENGINE-"
"""Every error the model raises on purpose starts with this and a code, so that the client can
tell a refusal from a breakdown."""

REFUSALS = (
    "empty_prompt",
    "prompt_too_long",
    "bad_schema",
    "bad_grammar",
    "unknown_lora",
    "bad_sampling",
    "cannot_resume",
    "bad_request",
)
"""Codes that say the request is at fault: sending it again cannot help."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a model: its name, element type and shape without a batch dimension."""

    name: str
    dtype: Dtype
    dims: tuple[int, ...] = (1,)
    optional: bool = True

    def pack(self, values: Sequence[Any]) -> bytes:
        """Serialises values in Triton's raw layout."""
        if self.dtype == "BYTES":
            parts: list[bytes] = []
            for value in values:
                raw = value.encode() if isinstance(value, str) else bytes(value)
                parts += (struct.pack("<I", len(raw)), raw)
            return b"".join(parts)
        return np.asarray(values, dtype=_NUMPY[self.dtype]).tobytes()

    def unpack(self, raw: bytes) -> list[Any]:
        """Reads what `pack` wrote, flattened."""
        if self.dtype != "BYTES":
            return list(np.frombuffer(raw, dtype=_NUMPY[self.dtype]).tolist())
        values: list[Any] = []
        at = 0
        while at < len(raw):
            (length,) = struct.unpack_from("<I", raw, at)
            values.append(raw[at + 4 : at + 4 + length])
            at += 4 + length
        return values

    def array(self, values: Sequence[Any]) -> Any:
        """The same values as a NumPy array, as Triton's Python backend wants them."""
        if self.dtype == "BYTES":
            return np.array([v.encode() if isinstance(v, str) else v for v in values], dtype=object)
        return np.asarray(values, dtype=_NUMPY[self.dtype])


@dataclass(frozen=True)
class Contract:
    """The tensors of one kind of model.

    Attributes:
        kind: "generate" or "embed".
        decoupled: Whether one request may have many responses.
    """

    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    decoupled: bool

    def input(self, name: str) -> Tensor:
        """The input of that name; KeyError when there is none."""
        return self._inputs_by_name[name]

    def output(self, name: str) -> Tensor:
        """The output of that name; KeyError when there is none."""
        return self._outputs_by_name[name]

    # Looked up for every tensor of every chunk: built once.
    @cached_property
    def _inputs_by_name(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.inputs}

    @cached_property
    def _outputs_by_name(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.outputs}


GENERATE = Contract(
    kind="generate",
    decoupled=True,
    inputs=(
        Tensor("operation", "BYTES"),
        Tensor("input_ids", "INT32", (-1,)),
        Tensor("generated_ids", "INT32", (-1,)),
        Tensor("max_tokens", "INT32"),
        Tensor("min_tokens", "INT32"),
        Tensor("temperature", "FP32"),
        Tensor("top_p", "FP32"),
        Tensor("top_k", "INT32"),
        Tensor("seed", "INT64"),
        Tensor("repetition_penalty", "FP32"),
        Tensor("presence_penalty", "FP32"),
        Tensor("frequency_penalty", "FP32"),
        Tensor("stop_token_ids", "INT32", (-1,)),
        Tensor("stop", "BYTES", (-1,)),
        Tensor("ignore_eos", "BOOL"),
        Tensor("biased_ids", "INT32", (-1,)),
        Tensor("biases", "FP32", (-1,)),
        Tensor("json_schema", "BYTES"),
        Tensor("grammar", "BYTES"),
        Tensor("lora_name", "BYTES"),
        Tensor("meter_request_id", "BYTES"),
    ),
    outputs=(
        Tensor("token_ids", "INT32", (-1,)),
        Tensor("text", "BYTES"),
        Tensor("finish_reason", "BYTES"),
        Tensor("stop_reason", "BYTES"),
        Tensor("prompt_tokens", "INT64"),
        Tensor("completion_tokens", "INT64"),
        Tensor("cached_tokens", "INT64"),
        Tensor("queue_us", "INT64"),
        Tensor("first_token_us", "INT64"),
        Tensor("total_us", "INT64"),
        Tensor("meter_state", "BYTES"),
        Tensor("meter_requests", "INT64"),
    ),
)

EMBED = Contract(
    kind="embed",
    decoupled=False,
    inputs=(Tensor("operation", "BYTES"), Tensor("texts", "BYTES", (-1,))),
    outputs=(Tensor("embeddings", "FP32", (-1, -1)), Tensor("token_counts", "INT64", (-1,))),
)


def config_pbtxt(name: str, contract: Contract, parameters: Mapping[str, str]) -> str:
    """The text of a model's config.pbtxt.

    `max_batch_size: 0` because the engine batches, not Triton; KIND_CPU because the engine
    places itself. Both sides of the decoupled switch are stated here so they cannot disagree.
    """
    lines = [f"name: {_quoted(name)}", 'backend: "python"', "max_batch_size: 0"]
    lines.append(
        f"model_transaction_policy {{ decoupled: {'true' if contract.decoupled else 'false'} }}"
    )
    lines.append("instance_group [ { count: 1 kind: KIND_CPU } ]")
    for tensor in contract.inputs:
        optional = " optional: true" if tensor.optional else ""
        lines.append(f"input [ {{ {_declared(tensor)}{optional} }} ]")
    lines += [f"output [ {{ {_declared(tensor)} }} ]" for tensor in contract.outputs]
    for key in sorted(parameters):
        value = _quoted(parameters[key])
        lines.append(f"parameters {{ key: {_quoted(key)} value {{ string_value: {value} }} }}")
    return "\n".join(lines) + "\n"


def _declared(tensor: Tensor) -> str:
    kind = "TYPE_STRING" if tensor.dtype == "BYTES" else f"TYPE_{tensor.dtype}"
    dims = ", ".join(str(dim) for dim in tensor.dims)
    return f"name: {_quoted(tensor.name)} data_type: {kind} dims: [ {dims} ]"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
