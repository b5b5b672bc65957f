"""The Prometheus metrics of all processes, defined once.

Every process exposes its own; a scraper adds them up. They count attempts as they happen, so a
retried activity counts twice where the ledger bills once: the ledger is right.

Labels are bounded: models of the registry, and fixed words. Never a task, user, key or text; an
unknown word becomes ``other``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Final, Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.exposition import choose_encoder

from observability.labels import OTHER, BoundedLabel

__all__ = [
    "REGISTRY",
    "record_batch",
    "record_batch_line",
    "record_cache",
    "record_generation",
    "record_interruption",
    "record_refusal",
    "record_round_trips",
    "record_settlement",
    "record_task",
    "record_waste",
    "render",
    "sse_reader",
    "start_metrics_server",
]

_log = logging.getLogger(__name__)

# A `_created` series beside each counter doubles what is scraped and is used by nobody.
disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY: Final = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

MOST_MODELS: Final = 64
"""Most models with series of their own; further ones are counted as ``other``."""

OUTCOMES: Final = frozenset({"succeeded", "failed", "cancelled", "cached"})
STATUSES: Final = frozenset({"accepted", "succeeded", "failed", "cancelled"})
BUCKETS: Final = ("uncached_input", "cached_input", "output")

# Powers of two from 5 ms: a first token takes 10 ms on a GPU and seconds on two CPU cores.
_FIRST_TOKEN_S: Final = tuple(0.005 * 2**n for n in range(13))
_DURATION_S: Final = tuple(0.01 * 2**n for n in range(16))

_calls = Counter(
    "overline_model_calls", "Model call attempts.", ["model", "outcome"], registry=REGISTRY
)
_tokens = Counter(
    "overline_tokens",
    "Tokens the engine processed, in disjoint buckets: uncached_input, cached_input, output.",
    ["model", "bucket"],
    registry=REGISTRY,
)
_cost = Counter(
    "overline_cost_usd",
    "Money booked in the ledger, in USD, by kind: billed, waste, or saved by the cache.",
    ["model", "kind"],
    registry=REGISTRY,
)
_first_token = Histogram(
    "overline_time_to_first_token_seconds",
    "Seconds from the request to the engine until its first token, seen by the client.",
    ["model"],
    buckets=_FIRST_TOKEN_S,
    registry=REGISTRY,
)
_duration = Histogram(
    "overline_model_call_duration_seconds",
    "Seconds of a model call attempt.",
    ["model", "outcome"],
    buckets=_DURATION_S,
    registry=REGISTRY,
)
_cache = Counter(
    "overline_cache_lookups",
    "Cache look-ups, by result: hit or miss.",
    ["result"],
    registry=REGISTRY,
)
_refusals = Counter(
    "overline_hold_refusals",
    "Calls refused before they cost anything, by code and by the budget that refused.",
    ["code", "scope"],
    registry=REGISTRY,
)
_resumes = Counter(
    "overline_resumes", "Attempts that went on from the journal.", ["model"], registry=REGISTRY
)
_resumed_tokens = Counter(
    "overline_resumed_tokens",
    "Output tokens that a resumed attempt did not generate again.",
    ["model"],
    registry=REGISTRY,
)
_wasted = Counter(
    "overline_wasted_tokens",
    "Tokens paid for without use, by cause.",
    ["cause"],
    registry=REGISTRY,
)
_round_trips = Counter(
    "overline_database_round_trips", "Round trips to Postgres.", registry=REGISTRY
)
_tasks = Counter(
    "overline_tasks",
    "Tasks that reached a status in this process.",
    ["status"],
    registry=REGISTRY,
)
_batches = Counter("overline_batches", "Batches that ended.", ["status"], registry=REGISTRY)
_batch_lines = Counter(
    "overline_batch_lines",
    "Lines of batches: answered, failed, or put off for a limit or an engine.",
    ["outcome"],
    registry=REGISTRY,
)
_sse_readers = Gauge("overline_sse_readers", "Open event streams.", registry=REGISTRY)


# Codes, scopes and causes are fixed by the database's schema, which this package must not import.
_model = BoundedLabel(MOST_MODELS)
_code = BoundedLabel(16)
_scope = BoundedLabel(8)
_cause = BoundedLabel(32)


class TokenCounts(Protocol):
    """The engine's count of one attempt, in tokens; ``cached`` ones are among the prompt's."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...


class EngineTimes(Protocol):
    """The engine's times of one attempt, in milliseconds; 0 or None is unknown."""

    @property
    def first_token_ms(self) -> float | None: ...
    @property
    def total_ms(self) -> float | None: ...


class Booked(Protocol):
    """What a settlement wrote into the ledger, in USD."""

    @property
    def billed_usd(self) -> Decimal: ...
    @property
    def waste_usd(self) -> Decimal: ...


def record_generation(
    model: str, usage: TokenCounts, timings: EngineTimes, resumed_tokens: int = 0
) -> None:
    """Count an attempt that finished: its tokens, its times, what it did not repeat.

    Args:
        model: Registered name.
        usage: Tokens the engine processed for this attempt.
        timings: How long that took.
        resumed_tokens: Output tokens taken from the journal instead of generated again.
    """
    label = _model(model)
    _calls.labels(label, "succeeded").inc()
    if timings.total_ms:
        _duration.labels(label, "succeeded").observe(timings.total_ms / 1000)
    if timings.first_token_ms:
        _first_token.labels(label).observe(timings.first_token_ms / 1000)
    counts = (
        usage.prompt_tokens - usage.cached_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
    )
    for bucket, count in zip(BUCKETS, counts, strict=True):
        if count > 0:
            _tokens.labels(label, bucket).inc(count)
    if resumed_tokens > 0:
        _resumes.labels(label).inc()
        _resumed_tokens.labels(label).inc(resumed_tokens)


def record_interruption(model: str, outcome: str, duration_s: float | None = None) -> None:
    """Count an attempt that did not finish.

    Args:
        model: Registered name.
        outcome: ``failed`` or ``cancelled``.
        duration_s: Seconds it ran.
    """
    label, outcome = _model(model), outcome if outcome in OUTCOMES else OTHER
    _calls.labels(label, outcome).inc()
    if duration_s is not None:
        _duration.labels(label, outcome).observe(duration_s)


def record_settlement(model: str | None, outcome: str, charge: Booked) -> None:
    """Count the money of one call, and the call itself where the cache answered it.

    Args:
        model: Registered name, or None if none was chosen.
        outcome: Outcome of the call; ``cached`` had no attempt that counted it.
        charge: What was booked; ``saved_usd`` is counted too where it has one.
    """
    if getattr(charge, "already_settled", False):
        # The activity's second attempt: its first one counted.
        return
    label = _model(model or "none")
    if outcome == "cached":
        _calls.labels(label, outcome).inc()
    saved = getattr(charge, "saved_usd", None) or Decimal(0)
    booked = (("billed", charge.billed_usd), ("waste", charge.waste_usd), ("saved", saved))
    for kind, amount in booked:
        if amount > 0:
            _cost.labels(label, kind).inc(float(amount))


def record_waste(cause: str, tokens: int) -> None:
    """Count tokens paid for without use, by the ledger's word for why."""
    if tokens > 0:
        _wasted.labels(_cause(cause)).inc(tokens)


def record_cache(hit: bool) -> None:
    """Count a look-up in the answer cache."""
    _cache.labels("hit" if hit else "miss").inc()


def record_refusal(code: str, scope: str | None = None) -> None:
    """Count a call refused before it cost anything.

    Args:
        code: ``budget_exceeded``, ``key_disabled`` or ``key_expired``.
        scope: Whose budget refused: ``task``, ``key``, ``team`` or ``organisation``.
    """
    _refusals.labels(_code(code), _scope(scope or "none")).inc()


def record_round_trips(count: int = 1) -> None:
    """Count round trips to Postgres."""
    _round_trips.inc(count)


def record_task(status: str) -> None:
    """Count a task that reached a status: ``accepted`` by the API, the others by workers."""
    _tasks.labels(status if status in STATUSES else OTHER).inc()


def record_batch(status: str) -> None:
    """Count a batch that ended: ``completed``, ``failed``, ``expired`` or ``cancelled``."""
    _batches.labels(status).inc()


def record_batch_line(outcome: str) -> None:
    """Count what became of a line: ``answered``, ``failed`` or ``postponed``."""
    _batch_lines.labels(outcome).inc()


@contextmanager
def sse_reader() -> Iterator[None]:
    """Count an open event stream for as long as the block runs."""
    with _sse_readers.track_inprogress():
        yield


def render(accept: str = "") -> tuple[bytes, str]:
    """Return the body and content type of ``/metrics`` for an ``Accept`` header."""
    encoder, content_type = choose_encoder(accept)
    return encoder(REGISTRY), content_type


def start_metrics_server(port: int, address: str = "127.0.0.1") -> bool:
    """Serve this process's metrics on a port, in a thread; for processes without HTTP.

    Args:
        port: TCP port; 0 serves nothing.
        address: Address to listen on.

    Returns:
        Whether metrics are served. A taken port is logged, not raised: work goes on without.
    """
    if port == 0:
        return False
    try:
        start_http_server(port, addr=address, registry=REGISTRY)
    except OSError as error:
        _log.error("metrics are not served: %s", error, extra={"port": port})
        return False
    return True
