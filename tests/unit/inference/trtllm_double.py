"""A stand-in with the signatures of TensorRT-LLM's LLM API, as documented for 1.2.

It refuses what the real one would refuse for its shape (unknown arguments), plays given tokens,
and remembers what it was asked. It proves that the engine calls the API as documented; it proves
nothing about a GPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass
class KvCacheConfig:
    enable_block_reuse: bool = True
    free_gpu_memory_fraction: float | None = None
    host_cache_size: int | None = None


@dataclass
class LoraConfig:
    lora_dir: list[str] = field(default_factory=list)
    max_lora_rank: int = 64
    max_loras: int | None = None
    max_cpu_loras: int | None = None


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""


@dataclass
class GuidedDecodingParams:
    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None


@dataclass
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    min_tokens: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    guided_decoding: GuidedDecodingParams | None = None
    detokenize: bool = True
    return_perf_metrics: bool = False


@dataclass
class TimingMetrics:
    arrival_time: float = 10.0
    first_scheduled_time: float = 10.0


@dataclass
class PerfMetrics:
    timing_metrics: TimingMetrics = field(default_factory=TimingMetrics)


@dataclass
class CompletionOutput:
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    request_perf_metrics: PerfMetrics = field(default_factory=PerfMetrics)


class RequestOutput:
    """Yields itself with the tokens so far, as the real one does."""

    def __init__(self, groups: list[list[int]], reason: str) -> None:
        self.outputs = [CompletionOutput()]
        self.cached_tokens = 3
        self.aborted = False
        self._groups = groups
        self._reason = reason

    def abort(self) -> None:
        self.aborted = True

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        for number, group in enumerate(self._groups):
            await asyncio.sleep(0)
            self.outputs[0].token_ids.extend(group)
            if number == len(self._groups) - 1:
                self.outputs[0].finish_reason = self._reason
            yield self


class LLM:
    """Plays `script`, a list of token groups, for every request."""

    script: ClassVar[list[list[int]]] = []
    reason = "stop"

    def __init__(
        self,
        model: str,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        *,
        max_batch_size: int | None = None,
        max_seq_len: int | None = None,
        enable_chunked_prefill: bool = False,
        kv_cache_config: KvCacheConfig | None = None,
        lora_config: LoraConfig | None = None,
        guided_decoding_backend: str | None = None,
        return_perf_metrics: bool = False,
    ) -> None:
        self.options = dict(locals())
        self.requests: list[dict[str, Any]] = []
        self.results: list[RequestOutput] = []
        self.down = False

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
    ) -> RequestOutput:
        self.requests.append(
            {
                "inputs": inputs,
                "sampling": sampling_params,
                "lora": lora_request,
                "streaming": streaming,
            }
        )
        self.results.append(RequestOutput([list(g) for g in self.script], self.reason))
        return self.results[-1]

    def shutdown(self) -> None:
        self.down = True
