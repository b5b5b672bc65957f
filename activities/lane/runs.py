"""One attempt at an engine, read in pieces, whichever kind of engine it is."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from activities.dependencies import Dependencies
from activities.generated import attempt_usage
from activities.lane.asking import Prompt, chat_request, sampling_of
from activities.lane.options import Option
from activities.lost_attempts import reading_after_end
from inference.errors import EngineError, EngineUnavailable
from inference.messages import GenerationRequest
from inference.upstream.messages import Delta, ToolPiece
from inference.usage import TokenUsage
from observability.spans import trace_carrier
from store.journal import AttemptTimings, AttemptUsage
from workflows.contracts.call import CallSpec

if TYPE_CHECKING:
    from inference.upstream.stream import ChatStream

__all__ = ["Ended", "Piece", "Run", "TextReader", "TritonRun", "UpstreamRun"]

# Longest silence of a stream, prefill of a full window on a slow processor included.
IDLE_S = 60.0
DEADLINE_S = 3_500.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended well."""

    usage: AttemptUsage
    finish_reason: str
    stop_reason: str | None
    timings: AttemptTimings

    @property
    def first_token_ms(self) -> float | None:
        """Until its first token, as the metrics read it."""
        return self.timings.first_token_ms

    @property
    def total_ms(self) -> float | None:
        """Until its end, as the metrics read it."""
        return self.timings.duration_ms


@dataclass(frozen=True, slots=True)
class Piece:
    """All that came at once: for the caller, and for the journal."""

    deltas: tuple[Delta, ...]
    token_ids: list[int]
    text: str
    ended: Ended | None = None


class Run(Protocol):
    """One attempt."""

    def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield what is made; closing it ends the attempt at the engine."""

    async def used(self) -> AttemptUsage:
        """Return what the attempt used, once it was closed before its end."""


class TextReader:
    """Makes deltas of a model's text: words as they come, a choice when it is whole."""

    def __init__(self, prompt: Prompt) -> None:
        self._chooses = prompt.grammar is not None
        self._held: list[str] = []
        # Whether it is a choice is seen by how it begins.
        self._words = not self._chooses

    def read(self, text: str) -> tuple[Delta, ...]:
        """Return what a piece of text adds."""
        if self._words:
            return (Delta(text=text),) if text else ()
        if not text:
            return ()
        self._held.append(text)
        so_far = "".join(self._held)
        if not so_far.startswith("{"):
            self._words = True
            self._held.clear()
            return (Delta(text=so_far),)
        return ()

    def end(self, finish_reason: str) -> tuple[Delta, ...]:
        """Return what the end adds."""
        if not self._held:
            return (Delta(finish_reason=finish_reason),)
        text = "".join(self._held)
        call = _call_of(text)
        if call is None:
            # Cut off in the middle of a choice: what there is, as words.
            return (Delta(text=text), Delta(finish_reason=finish_reason))
        return (Delta(tool_calls=(call,)), Delta(finish_reason="tool_calls"))


def _call_of(text: str) -> ToolPiece | None:
    try:
        choice = json.loads(text)
        if not isinstance(choice, dict) or not isinstance(choice.get("tool"), str):
            return None
        arguments = json.dumps(choice.get("arguments", {}))
    except (ValueError, RecursionError):
        return None
    return ToolPiece(0, f"call_{uuid4().hex[:24]}", choice["tool"], arguments)


class TritonRun:
    """An attempt at a model under Triton; goes on from what an earlier one has made."""

    def __init__(
        self,
        deps: Dependencies,
        option: Option,
        spec: CallSpec,
        prompt: Prompt,
        *,
        request_id: str,
        generated_ids: list[int] | None = None,
        generated_text: str = "",
    ) -> None:
        self._deps = deps
        self._option = option
        self._spec = spec
        self._prompt = prompt
        self._client = deps.engines.at(option.url)
        self._request_id = request_id
        self._generated_ids = generated_ids or []
        self._generated_text = generated_text

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield what is made."""
        tokenizer = await self._deps.tokenizers.of(self._option.model.name)
        reader = TextReader(self._prompt)
        earlier = reader.read(self._generated_text)
        if earlier:
            yield Piece(earlier, [], "")
        request = GenerationRequest(
            triton_model=self._option.engine_model,
            request_id=self._request_id,
            input_ids=self._prompt.ids,
            generated_ids=self._generated_ids,
            sampling=sampling_of(self._spec, self._prompt, tokenizer.stops),
            json_schema=self._prompt.schema,
            grammar=self._prompt.grammar,
            deadline_s=DEADLINE_S,
            idle_s=IDLE_S,
            metadata=trace_carrier(),
        )
        async with contextlib.aclosing(self._client.generate(request)) as stream:
            async for chunk in stream:
                deltas = reader.read(chunk.text)
                final = chunk.final
                if final is None:
                    yield Piece(deltas, chunk.token_ids, chunk.text)
                    continue
                times = final.timings
                yield Piece(
                    deltas + reader.end(final.finish_reason),
                    chunk.token_ids,
                    chunk.text,
                    Ended(
                        AttemptUsage(
                            prompt_tokens=final.prompt_tokens,
                            cached_tokens=final.cached_tokens,
                            completion_tokens=final.completion_tokens,
                            source="engine",
                        ),
                        final.finish_reason,
                        final.stop_reason,
                        AttemptTimings(times.queue_ms, times.first_token_ms, times.total_ms),
                    ),
                )
                return
        raise EngineUnavailable("the stream ended without its last chunk", "incomplete")

    async def used(self) -> AttemptUsage:
        """Return the engine's own count; the journal's where the engine cannot be asked."""
        with contextlib.suppress(EngineError):
            reading = await reading_after_end(
                self._client, self._option.engine_model, self._request_id
            )
            if reading is not None:
                return AttemptUsage(
                    prompt_tokens=reading.prompt_tokens,
                    cached_tokens=reading.cached_tokens,
                    completion_tokens=reading.completion_tokens,
                    source="engine",
                )
            return AttemptUsage(0, 0, 0, "engine")
        return AttemptUsage(len(self._prompt.ids), 0, 0, "journal")


class UpstreamRun:
    """An attempt at an upstream: nothing can be continued there."""

    def __init__(self, deps: Dependencies, option: Option, spec: CallSpec) -> None:
        self._deps = deps
        self._option = option
        self._spec = spec
        self._stream: ChatStream | None = None

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield what is made."""
        client = await self._deps.upstream(self._option.deployment, self._option.url)
        self._stream = stream = client.stream(chat_request(self._option, self._spec))
        async with stream:
            async for chunk in stream:
                final = chunk.final
                if final is None:
                    yield Piece(chunk.deltas, [], chunk.text)
                    continue
                times = final.timings
                yield Piece(
                    chunk.deltas,
                    [],
                    chunk.text,
                    Ended(
                        attempt_usage(final.usage),
                        final.finish_reason,
                        None,
                        AttemptTimings(None, times.first_token_ms, times.total_ms),
                    ),
                )
                return
        raise EngineUnavailable("the stream ended without its last chunk", "incomplete")

    async def used(self) -> AttemptUsage:
        """Return the upstream's own count, or an estimate."""
        return attempt_usage(self._stream.usage if self._stream is not None else TokenUsage())
