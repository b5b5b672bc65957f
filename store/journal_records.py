"""What the token journal says and is told: its records, and how they are read from rows."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from store.database import Row

Channel = Literal["answer", "tool_call"]
UsageSource = Literal["engine", "journal", "upstream", "estimate"]


@dataclass(frozen=True, slots=True)
class AttemptUsage:
    """Tokens one attempt made the engine process, by the engine's count or the journal's.

    `prompt_tokens` includes `cached_tokens`, `completion_tokens` includes `reasoning_tokens`; all
    are of this attempt alone.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    source: UsageSource
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class AttemptTimings:
    """Engine timings of one attempt, in milliseconds since it got the request; None: unknown."""

    queue_ms: float | None = None
    first_token_ms: float | None = None
    duration_ms: float | None = None


@dataclass(frozen=True, slots=True)
class FinishedGeneration:
    """A generation that ended well before this attempt began; nothing is left to generate.

    Attributes:
        text: all of it.
        completion_tokens: useful output tokens over all attempts.
        cached_tokens: prompt tokens the engine had cached when it first read the prompt.
        stop_reason: the stop string or token that ended it.
        timings: those of the attempt that finished.
    """

    text: str
    completion_tokens: int
    cached_tokens: int
    finish_reason: str
    stop_reason: str | None = None
    timings: AttemptTimings = field(default_factory=AttemptTimings)


@dataclass(frozen=True, slots=True)
class UnresolvedAttempt:
    """An earlier attempt that never said how it ended: its usage is to be asked of the engine."""

    epoch: int
    request_id: str
    replica: str
    journaled_tokens: int


@dataclass(frozen=True, slots=True)
class StagedRequest:
    """What an upstream is asked.

    Attributes:
        request: JSON text: `messages` and `parameters`.
        prompt_tokens: what that is likely to be, in tokens.
    """

    request: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Begun:
    """A new attempt and what the earlier ones left.

    Attributes:
        epoch: the new attempt's number (the last one's when `finished` is set).
        request_id: the id to give the engine, `<generation key>@<epoch>`.
        generated_ids: tokens already in the journal, in order; generation goes on after them.
        text: the text of those tokens.
        next_seq: sequence number of the next chunk.
        finished: set when there is nothing left to do; no attempt was opened then.
    """

    epoch: int
    request_id: str
    prompt_ids: list[int]
    generated_ids: list[int]
    text: str
    next_seq: int
    finished: FinishedGeneration | None
    unresolved: list[UnresolvedAttempt]
    channel: Channel
    model: str
    model_version: str
    tokenizer_version: str
    deployment: str


def pack(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int32, four bytes each."""
    packed = array("i", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(packed: bytes) -> list[int]:
    """The inverse of `pack`."""
    token_ids = array("i")
    token_ids.frombytes(packed)
    if sys.byteorder == "big":
        token_ids.byteswap()
    return token_ids.tolist()


def begun_from_row(generation_key: str, row: Row) -> Begun:
    """Reads what `begin_attempt` and `restart_generation` return."""
    finished = row["finished"]
    return Begun(
        epoch=row["epoch"],
        request_id=f"{generation_key}@{row['epoch']}",
        prompt_ids=unpack(row["prompt_ids"]),
        generated_ids=row["generated_ids"],
        text=row["generated_text"],
        next_seq=row["next_seq"],
        finished=None if finished is None else _finished(finished, row["generated_text"]),
        unresolved=[UnresolvedAttempt(**attempt) for attempt in row["unresolved"]],
        channel=row["channel"],
        model=row["model"],
        model_version=row["model_version"],
        tokenizer_version=row["tokenizer_version"],
        deployment=row["deployment"],
    )


def _finished(row: Row, text: str) -> FinishedGeneration:
    return FinishedGeneration(
        text=text,
        completion_tokens=row["completion_tokens"],
        cached_tokens=row["cached_tokens"],
        finish_reason=row["finish_reason"] or "stop",
        stop_reason=row["stop_reason"],
        timings=AttemptTimings(row["queue_ms"], row["first_token_ms"], row["duration_ms"]),
    )
