"""llama.cpp (xllamacpp) as an engine: CPU, GGUF weights.

llama.cpp batches continuously and keeps prefixes by itself. It is spoken to over its own
listener on loopback, because only that one takes and gives token ids. Text, stop strings and
stop tokens are not its business here; see `inference.generation`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from inference.engines.base import EngineRefusal, Step
from inference.engines.constraint import constraint
from inference.engines.llama_http import HttpRefusal, Listener
from inference.engines.lost_tokens import find_lost, index_by_bytes
from inference.prompt import Prompt
from inference.vocabulary import Vocabulary

_PREFIX_CACHE_MIB = 512
_BATCH = 512


@dataclass(frozen=True)
class LlamaSettings:
    """How llama.cpp is set up.

    Attributes:
        weights: Path of the GGUF file.
        slots: Requests it batches at a time.
        threads: CPU threads; 0 means all cores but one.
        adapters: LoRA adapters, path by name.
    """

    weights: str
    slots: int = 4
    threads: int = 0
    adapters: dict[str, str] = field(default_factory=dict)


class LlamaCppEngine:
    """See `inference.engines.base.Engine`."""

    def __init__(self, vocabulary: Vocabulary, settings: LlamaSettings) -> None:
        """Remembers what to load; `start` loads it."""
        self._vocabulary = vocabulary
        self._settings = settings
        self._by_bytes = index_by_bytes(vocabulary)
        self._adapters = {name: n for n, name in enumerate(sorted(settings.adapters))}
        self._server: Any = None
        self._listener: Listener | None = None

    async def start(self) -> None:
        """Loads the weights."""
        await asyncio.to_thread(self._load)

    async def close(self) -> None:
        """Frees the weights."""
        self._server = None

    def _load(self) -> None:
        import xllamacpp  # Only the engine's environment has it.

        given = self._settings
        key = secrets.token_urlsafe(16)
        params = xllamacpp.CommonParams()
        params.model.path = given.weights
        params.n_parallel = given.slots
        # Each slot has a window of its own: a long neighbour must not push anyone out.
        params.kv_unified = False
        params.n_ctx = self._vocabulary.context_window * given.slots
        params.n_batch = params.n_ubatch = _BATCH
        # llama.cpp's threads wait for each other by spinning. With one on every core, any other
        # process that needs a core stops them all: on two busy cores, two threads were measured
        # four times slower than one, for six times the CPU time.
        threads = given.threads or max((os.cpu_count() or 1) - 1, 1)
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        # A slot's worker each, and some for cancellations that are still being noticed.
        params.n_threads_http = 2 * given.slots + 4
        params.cache_ram_mib = _PREFIX_CACHE_MIB
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        params.api_keys = [key]
        params.verbosity = 1
        adapters = []
        for name in self._adapters:
            adapter = xllamacpp.CommonAdapterLoraInfo()
            adapter.path, adapter.scale = given.adapters[name], 0.0
            adapters.append(adapter)
        if adapters:
            params.lora_adapters = adapters
            params.lora_init_without_apply = True
        self._server = xllamacpp.Server(params)
        self._listener = Listener.at(self._server.listening_address, key)

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Step, None]:
        """Continues the prompt."""
        run = _Run(prompt, self._vocabulary)
        sampling = prompt.sampling
        constrained = prompt.json_schema is not None or prompt.grammar is not None
        if sampling.min_tokens and constrained:
            # A finished grammar and a forbidden end together leave no token at all.
            raise EngineRefusal("bad_sampling", "min_tokens goes with no schema or grammar")
        if not sampling.ignore_eos and sampling.min_tokens > len(prompt.generated_ids):
            # llama.cpp has no such setting: the end is forbidden up to there, then allowed. The
            # second part finds its prefix in the cache.
            async with aclosing(self._part(run, sampling.min_tokens, no_end=True)) as steps:
                async for step in steps:
                    yield step
            if sampling.min_tokens >= sampling.max_tokens:
                return
        last = self._part(run, sampling.max_tokens, no_end=sampling.ignore_eos)
        async with aclosing(last) as steps:
            async for step in steps:
                yield step

    async def _part(self, run: _Run, until: int, *, no_end: bool) -> AsyncGenerator[Step, None]:
        """Generates up to `until` tokens in all; asks again where llama.cpp lost some."""
        while True:
            lost = False
            body = self._body(run, until - len(run.generated), no_end=no_end, stream=True)
            async with aclosing(self._stream(body)) as batches:
                async for events in batches:
                    step, lost = self._read(run, events)
                    if step.token_ids or step.ended:
                        ended = step.ended if until >= run.max_tokens else None
                        yield Step(step.token_ids, run.taken, run.cached, run.queue_us, ended)
                    if lost or step.ended:
                        break
            if not lost:
                return
            # What was lost has not been seen by anyone: it is generated again in one piece,
            # which does name its tokens.
            missing = min(run.missing, until - len(run.generated))
            body = self._body(run, missing, no_end=no_end, stream=False)
            answer = await self._ask(body)
            run.missing = 0
            run.generated += answer["tokens"]
            over = answer["stop_type"] == "eos" or len(run.generated) >= until
            ended = ("stop" if answer["stop_type"] == "eos" else "length") if over else None
            if until < run.max_tokens:
                ended = None
            yield Step(list(answer["tokens"]), run.taken, run.cached, run.queue_us, ended)
            if over:
                return

    def _read(self, run: _Run, events: list[dict[str, Any]]) -> tuple[Step, bool]:
        """Tokens of some events, and whether some are lost for good."""
        ids: list[int] = []
        ended: str | None = None
        for event in events:
            run.note_timings(event)
            known = len(run.generated) - run.part_start + len(event["tokens"])
            run.missing = event["tokens_predicted"] - known
            if event.get("stop"):
                if run.missing:
                    return Step(ids, 0), True
                ended = "stop" if event["stop_type"] == "eos" else "length"
                break
            (last,) = event["tokens"]
            if run.missing:
                piece = self._vocabulary.pieces[last]
                found = find_lost(self._by_bytes, event["content"], run.missing, piece)
                if found is None:
                    run.missing += 1
                    return Step(ids, 0), True
                ids += found
                run.generated += found
                run.missing = 0
            ids.append(last)
            run.generated.append(last)
        return Step(ids, 0, ended=ended), False

    def _body(self, run: _Run, count: int, *, no_end: bool, stream: bool) -> dict[str, Any]:
        sampling = run.prompt.sampling
        run.begin_part()
        body: dict[str, Any] = {
            "prompt": run.prompt.input_ids + run.generated,
            "n_predict": count,
            "stream": stream,
            "return_tokens": True,
            "cache_prompt": True,
            "timings_per_token": True,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            # A continuation must not draw the first attempt's random numbers again.
            "seed": -1 if sampling.seed is None else (sampling.seed + len(run.generated)) % 2**32,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": self._vocabulary.context_window,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "ignore_eos": no_end,
        }
        if sampling.biased_ids:
            body["logit_bias"] = list(zip(sampling.biased_ids, sampling.biases, strict=True))
        grammar = constraint(run.prompt, self._vocabulary.join(run.generated))
        if grammar is not None:
            body["grammar"] = grammar
        name = run.prompt.lora_name
        if name is not None and name not in self._adapters:
            known = ", ".join(sorted(self._adapters)) or "none"
            raise EngineRefusal("unknown_lora", f"no adapter is called {name!r}; known: {known}")
        if self._adapters:
            body["lora"] = [
                {"id": n, "scale": 1.0 if each == name else 0.0}
                for each, n in self._adapters.items()
            ]
        return body

    async def _stream(self, body: dict[str, Any]) -> AsyncGenerator[list[dict[str, Any]], None]:
        assert self._listener is not None
        try:
            async with aclosing(self._listener.stream("/completion", body)) as batches:
                async for events in batches:
                    yield events
        except HttpRefusal as refusal:
            raise _translated(refusal) from refusal

    async def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        assert self._listener is not None
        try:
            return await self._listener.ask("/completion", body)
        except HttpRefusal as refusal:
            raise _translated(refusal) from refusal


class _Run:
    """One generation over its parts."""

    def __init__(self, prompt: Prompt, vocabulary: Vocabulary) -> None:
        self.prompt = prompt
        self.generated = list(prompt.generated_ids)
        self.max_tokens = prompt.sampling.max_tokens
        self.taken = len(prompt.input_ids) + len(prompt.generated_ids)
        self.cached = 0
        self.queue_us = 0
        self.missing = 0
        self.part_start = 0
        self._started_ns = time.perf_counter_ns()
        self._timed = False

    def begin_part(self) -> None:
        self.part_start = len(self.generated)

    def note_timings(self, event: dict[str, Any]) -> None:
        """Takes the first event's: later parts only re-read what this one has read."""
        timings = event.get("timings")
        if self._timed or not timings:
            return
        self._timed = True
        self.cached = int(timings["cache_n"])
        waited_us = (time.perf_counter_ns() - self._started_ns) / 1000
        worked_us = (timings["prompt_ms"] + timings["predicted_ms"]) * 1000
        self.queue_us = max(0, int(waited_us - worked_us))


def _translated(refusal: HttpRefusal) -> Exception:
    message = str(refusal)
    if refusal.kind == "exceed_context_size_error":
        return EngineRefusal("prompt_too_long", message)
    if "grammar" in message:
        return EngineRefusal("bad_grammar", "llama.cpp does not accept the grammar")
    if refusal.status == 400:
        return EngineRefusal("bad_request", message)
    return RuntimeError(f"llama.cpp answered {refusal.status}: {message}")
