"""TensorRT-LLM as an engine: GPU, through its LLM API (1.2 and later).

**This has not run on a GPU yet.** It is written against the documented LLM API and tested with a
double that has its signatures (tests/unit/inference/trtllm_double.py). What only a GPU can show,
the figures of guided decoding under load for one, is not promised.

The LLM API batches in flight and reuses prefixes (`KvCacheConfig(enable_block_reuse=True)`) by
itself. Text, stop strings and stop tokens are not its business here; see `inference.generation`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from inference.engines.base import EngineRefusal, Step
from inference.engines.constraint import constraint
from inference.prompt import Prompt
from inference.vocabulary import Vocabulary


@dataclass(frozen=True)
class TensorRtSettings:
    """How the LLM API is set up.

    Attributes:
        model: Name or folder of a checkpoint in Hugging Face's format.
        slots: Requests batched at a time.
        tensor_parallel: GPUs one layer is spread over.
        memory_fraction: Share of the free GPU memory the KV cache takes.
        adapters: LoRA adapters, folder by name.
        max_lora_rank: Highest rank among them.
    """

    model: str
    slots: int = 64
    tensor_parallel: int = 1
    memory_fraction: float = 0.9
    adapters: dict[str, str] = field(default_factory=dict)
    max_lora_rank: int = 64


class TensorRtLlmEngine:
    """See `inference.engines.base.Engine`."""

    def __init__(
        self, vocabulary: Vocabulary, settings: TensorRtSettings, api: Any | None = None
    ) -> None:
        """Remembers what to load; `start` loads it.

        Args:
            vocabulary: The model's tokens.
            settings: How to load it.
            api: Something with the names `_llm_api` gives; those of the package when None.
        """
        self._vocabulary = vocabulary
        self._settings = settings
        self._api = api
        # Ids start at 1: an adapter is cached by its id, and 0 means none.
        self._adapters = {name: n + 1 for n, name in enumerate(sorted(settings.adapters))}
        self._llm: Any = None

    async def start(self) -> None:
        """Loads the checkpoint."""
        if self._api is None:
            self._api = _llm_api()
        await asyncio.to_thread(self._load, self._api)

    async def close(self) -> None:
        """Frees the GPU."""
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)

    def _load(self, api: Any) -> None:
        given = self._settings
        options: dict[str, Any] = {
            "model": given.model,
            # Ids go in and out, but guided decoding needs to know how tokens are spelled.
            "skip_tokenizer_init": False,
            "tensor_parallel_size": given.tensor_parallel,
            "max_batch_size": given.slots,
            "max_seq_len": self._vocabulary.context_window,
            "enable_chunked_prefill": True,
            "kv_cache_config": api.KvCacheConfig(
                enable_block_reuse=True, free_gpu_memory_fraction=given.memory_fraction
            ),
            "guided_decoding_backend": "xgrammar",
            "return_perf_metrics": True,
        }
        if self._adapters:
            options["lora_config"] = api.LoraConfig(
                lora_dir=list(given.adapters.values()),
                max_lora_rank=given.max_lora_rank,
                max_loras=len(self._adapters),
                max_cpu_loras=len(self._adapters),
            )
        self._llm = api.LLM(**options)

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Step, None]:
        """Continues the prompt; closing the generator aborts the request in the executor."""
        taken = prompt.input_ids + prompt.generated_ids
        started = time.perf_counter()
        # By keyword, all of it: the third positional parameter is not the streaming switch, a
        # mistake NVIDIA's own Triton model made.
        result = self._llm.generate_async(
            inputs=taken,
            sampling_params=self._sampling(prompt),
            lora_request=self._lora(prompt.lora_name),
            streaming=True,
        )
        given = 0
        queue_us = 0
        try:
            async for output in result:
                (completion,) = output.outputs
                ids = list(completion.token_ids)[given:]
                given += len(ids)
                if ids and not queue_us:
                    queue_us = _queue_us(completion, started)
                ended = _ended(completion.finish_reason)
                if ids or ended:
                    cached = int(getattr(output, "cached_tokens", 0) or 0)
                    yield Step(ids, len(taken), cached, queue_us, ended)
                if ended:
                    return
        finally:
            # Harmless when it is over; frees the slot when it is not.
            with contextlib.suppress(Exception):
                result.abort()

    def _sampling(self, prompt: Prompt) -> Any:
        assert self._api is not None
        sampling = prompt.sampling
        if sampling.biased_ids:
            # It takes a tensor as long as the vocabulary; nobody has tried that here.
            raise EngineRefusal("bad_sampling", "this engine biases no tokens")
        said = len(prompt.generated_ids)
        chosen: dict[str, Any] = {
            "max_tokens": sampling.max_tokens - said,
            "end_id": min(self._vocabulary.eos_ids),
            "pad_id": min(self._vocabulary.eos_ids),
            "ignore_eos": sampling.ignore_eos,
            # Stop tokens end the request in the executor already, not a round trip later.
            "stop_token_ids": sorted({*sampling.stop_token_ids, *self._other_ends(prompt)}),
            "include_stop_str_in_output": True,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "detokenize": False,
            "return_perf_metrics": True,
        }
        if sampling.min_tokens > said:
            chosen["min_tokens"] = sampling.min_tokens - said
        if sampling.temperature == 0:
            chosen["top_k"] = 1
        else:
            # A temperature without top_p or top_k counts as greedy there, and an unset seed is
            # the seed 0: both are always said.
            chosen["temperature"] = sampling.temperature
            chosen["top_p"] = sampling.top_p
            if sampling.top_k:
                chosen["top_k"] = sampling.top_k
            seed = time.time_ns() if sampling.seed is None else sampling.seed + said
            chosen["seed"] = seed % 2**63
        guide = constraint(prompt, self._vocabulary.join(prompt.generated_ids))
        if guide is not None:
            # xgrammar reads GBNF, so the same rest of a grammar that llama.cpp is given works.
            chosen["guided_decoding"] = self._api.GuidedDecodingParams(grammar=guide)
        return self._api.SamplingParams(**chosen)

    def _other_ends(self, prompt: Prompt) -> set[int]:
        """Ends of text beside the one `end_id` names."""
        if prompt.sampling.ignore_eos:
            return set()
        return set(self._vocabulary.eos_ids) - {min(self._vocabulary.eos_ids)}

    def _lora(self, name: str | None) -> Any | None:
        if name is None:
            return None
        assert self._api is not None
        if name not in self._adapters:
            known = ", ".join(sorted(self._adapters)) or "none"
            raise EngineRefusal("unknown_lora", f"no adapter is called {name!r}; known: {known}")
        return self._api.LoRARequest(name, self._adapters[name], self._settings.adapters[name])


def _llm_api() -> Any:
    """What is used of the package; only an environment with a GPU has it."""
    from tensorrt_llm import LLM, SamplingParams
    from tensorrt_llm.executor import LoRARequest
    from tensorrt_llm.llmapi import GuidedDecodingParams, KvCacheConfig
    from tensorrt_llm.lora_helper import LoraConfig

    return SimpleNamespace(
        LLM=LLM,
        SamplingParams=SamplingParams,
        LoRARequest=LoRARequest,
        GuidedDecodingParams=GuidedDecodingParams,
        KvCacheConfig=KvCacheConfig,
        LoraConfig=LoraConfig,
    )


def _ended(reason: str | None) -> str | None:
    """The executor's reason in our words; it says None, or the text "None", until the end."""
    if reason in (None, "None", "not_finished"):
        return None
    if reason in ("stop", "length"):
        return reason
    # "timeout" and "cancelled" were not asked for by us.
    raise RuntimeError(f"the executor ended the request: {reason}")


def _queue_us(completion: Any, started: float) -> int:
    """Time in the executor's queue, from its own metrics where it gives them."""
    metrics = getattr(completion, "request_perf_metrics", None)
    timing = getattr(metrics, "timing_metrics", None)
    if timing is None:
        return 0
    waited = timing.first_scheduled_time - timing.arrival_time
    # A timedelta in the bindings, seconds in plain Python.
    seconds = waited.total_seconds() if hasattr(waited, "total_seconds") else float(waited)
    return max(0, min(int(seconds * 1e6), int((time.perf_counter() - started) * 1e6)))
