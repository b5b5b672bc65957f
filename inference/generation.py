"""One generation around any engine: limits, text, stop strings, counting, timing.

Order matters in one place: the meter is written before tokens leave, so that whatever a caller
has seen, the meter has counted, even if the process is killed between the two.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from inference.detokenizer import TextStream
from inference.engines.base import Engine, EngineRefusal, Step
from inference.meter import MAX_ID, Meter
from inference.prompt import Prompt
from inference.vocabulary import Vocabulary


@dataclass(frozen=True)
class End:
    """How a generation ended.

    Attributes:
        finish_reason: "stop", "length" or "cancelled".
        stop_reason: The stop string, or the id of the stop token, in decimal.
        prompt_tokens: Tokens the engine took in, those of earlier attempts included.
        completion_tokens: Tokens this attempt gave.
    """

    finish_reason: str
    stop_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    queue_us: int = 0
    first_token_us: int = 0
    total_us: int = 0


@dataclass(frozen=True)
class Chunk:
    """Tokens and text that leave together; the last one has `end`."""

    token_ids: list[int]
    text: str
    end: End | None = None


def check(prompt: Prompt, vocabulary: Vocabulary) -> None:
    """Refuses what no engine could run.

    Raises:
        EngineRefusal: With a code and a message that says which limit.
    """
    sampling = prompt.sampling
    if not prompt.input_ids:
        raise EngineRefusal("empty_prompt", "the prompt has no token")
    window = vocabulary.context_window
    if len(prompt.input_ids) + sampling.max_tokens > window:
        raise EngineRefusal(
            "prompt_too_long",
            f"prompt of {len(prompt.input_ids)} tokens and max_tokens {sampling.max_tokens} "
            f"exceed the window of {window}",
        )
    size = len(vocabulary)
    for name, ids in (
        ("input_ids", prompt.input_ids),
        ("generated_ids", prompt.generated_ids),
        ("stop_token_ids", list(sampling.stop_token_ids)),
        ("biased_ids", list(sampling.biased_ids)),
    ):
        if ids and not (min(ids) >= 0 and max(ids) < size):
            raise EngineRefusal("bad_request", f"{name} holds an id outside 0..{size - 1}")
    limits = (
        (sampling.max_tokens >= 1, "max_tokens must be at least 1"),
        (0 <= sampling.min_tokens <= sampling.max_tokens, "min_tokens must be in 0..max_tokens"),
        (0 <= sampling.temperature <= 100, "temperature must be in 0..100"),
        (0 < sampling.top_p <= 1, "top_p must be above 0 and at most 1"),
        (sampling.top_k >= 0, "top_k must not be negative"),
        (0 < sampling.repetition_penalty <= 100, "repetition_penalty must be in 0..100"),
        (math.isfinite(sampling.presence_penalty), "presence_penalty must be finite"),
        (math.isfinite(sampling.frequency_penalty), "frequency_penalty must be finite"),
        (all(sampling.stop), "a stop string must not be empty"),
        (len(sampling.biased_ids) == len(sampling.biases), "every biased id has one bias"),
        (all(map(math.isfinite, sampling.biases)), "biases must be finite"),
    )
    for holds, message in limits:
        if not holds:
            raise EngineRefusal("bad_sampling", message)
    if len(prompt.request_id.encode()) > MAX_ID:
        raise EngineRefusal("bad_request", f"a request id may have {MAX_ID} bytes")
    if prompt.json_schema is not None and prompt.grammar is not None:
        raise EngineRefusal("bad_grammar", "give a JSON schema or a grammar, not both")


async def generate(
    engine: Engine, vocabulary: Vocabulary, meter: Meter, prompt: Prompt, received_ns: int
) -> AsyncGenerator[Chunk, None]:
    """Runs one generation and yields its chunks, the last one with `end`.

    Closing the generator cancels: the slot is freed and the meter says "cancelled".

    Args:
        engine: The loaded model.
        vocabulary: Its tokens.
        meter: Where the tokens are counted.
        prompt: What to continue.
        received_ns: When the request came in, on `time.perf_counter_ns`.

    Raises:
        EngineRefusal: The request is at fault; nothing was generated.
    """
    check(prompt, vocabulary)
    entry = meter.begin(prompt.request_id)
    state = "failed"
    try:
        run = _Run(prompt, vocabulary)
        chunk = run.already_over()
        if chunk is not None:
            state = "finished"
            yield chunk
            return
        async with aclosing(engine.generate(prompt)) as steps:
            async for step in steps:
                chunk = run.take(step, received_ns)
                entry.count(run.prompt_tokens, run.cached_tokens, run.completion_tokens)
                if chunk.end is not None:
                    state = "finished"
                    # Written before it leaves: a reader of the last chunk may ask at once.
                    entry.close(state)
                yield chunk
                if chunk.end is not None:
                    return
        raise RuntimeError("the engine stopped without saying why")
    except (GeneratorExit, asyncio.CancelledError):
        state = state if state == "finished" else "cancelled"
        raise
    finally:
        entry.close(state)


class _Run:
    """The state of one generation between two steps."""

    def __init__(self, prompt: Prompt, vocabulary: Vocabulary) -> None:
        sampling = prompt.sampling
        self._text = TextStream(vocabulary, sampling.stop)
        self._enders = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            self._enders |= vocabulary.eos_ids
        self._eos_ids = vocabulary.eos_ids
        self._left = sampling.max_tokens - len(prompt.generated_ids)
        self._first_ns = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self._queue_us = 0
        self._over: tuple[str, str] | None = None
        for token_id in prompt.generated_ids:
            self._text.feed(token_id)
            self._over = self._over or self._ended_by(token_id)
        if self._over is None and self._left <= 0:
            self._over = ("length", "")

    def already_over(self) -> Chunk | None:
        """The end, when the earlier attempts had reached it without anybody noticing."""
        if self._over is None:
            return None
        text = "" if self._text.stopped_by else self._text.finish()
        return Chunk([], text, End(*self._over))

    def take(self, step: Step, received_ns: int) -> Chunk:
        """Turns a step into a chunk, cut where the generation ends."""
        now = time.perf_counter_ns()
        if step.token_ids and not self._first_ns:
            self._first_ns = now
        self.prompt_tokens, self.cached_tokens = step.prompt_tokens, step.cached_tokens
        self._queue_us = step.queue_us or self._queue_us
        kept: list[int] = []
        text = ""
        over: tuple[str, str] | None = None
        for token_id in step.token_ids:
            kept.append(token_id)
            text += self._text.feed(token_id)
            self._left -= 1
            over = self._ended_by(token_id) or (("length", "") if self._left <= 0 else None)
            if over:
                break
        self.completion_tokens += len(kept)
        if over is None and step.ended is not None:
            over = (step.ended, "")
        if over is None:
            return Chunk(kept, text)
        if not self._text.stopped_by:
            text += self._text.finish()
        end = End(
            *over,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
            queue_us=self._queue_us,
            first_token_us=(self._first_ns - received_ns) // 1000 if self._first_ns else 0,
            total_us=(now - received_ns) // 1000,
        )
        return Chunk(kept, text, end)

    def _ended_by(self, token_id: int) -> tuple[str, str] | None:
        if self._text.stopped_by is not None:
            return "stop", self._text.stopped_by
        if token_id in self._enders:
            return "stop", "" if token_id in self._eos_ids else str(token_id)
        return None
