"""The Prometheus metrics of all processes, defined once.

Every process exposes its own; a scraper adds them up. They count attempts as they happen, so a
retried activity counts twice where the ledger bills once: the ledger is right.

Labels are bounded: models of the registry, and fixed words. Never a task, user, key or text; an
unknown word becomes ``other``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Final

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

__all__ = [
    "REGISTRY",
    "cache_lookup",
    "call_finished",
    "call_resumed",
    "cost_booked",
    "database_round_trips",
    "hold_refused",
    "render",
    "sse_reader",
    "start_metrics_server",
    "task_finished",
    "tokens_wasted",
]

_log = logging.getLogger(__name__)

# A `_created` series beside each counter doubles what is scraped and is used by nobody.
disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY: Final = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

OTHER: Final = "other"
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
_sse_readers = Gauge("overline_sse_readers", "Open event streams.", registry=REGISTRY)


class _Bounded:
    """Admits the first ``most`` different words, and calls the rest ``other``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, word: str) -> str:
        if word in self._seen:
            return word
        with self._lock:
            if len(self._seen) >= self._most:
                return OTHER
            self._seen.add(word)
            return word


# Codes, scopes and causes are fixed by the database's schema, which this package must not import.
_model = _Bounded(MOST_MODELS)
_code = _Bounded(16)
_scope = _Bounded(8)
_cause = _Bounded(32)


def call_finished(
    *,
    model: str,
    outcome: str,
    duration_s: float | None = None,
    first_token_s: float | None = None,
    uncached_input_tokens: int = 0,
    cached_input_tokens: int = 0,
    output_tokens: int = 0,
) -> None:
    """Count one attempt of a model call, with the tokens the engine processed for it.

    Args:
        model: Registered name.
        outcome: ``succeeded``, ``failed``, ``cancelled`` or ``cached``.
        duration_s: Seconds the attempt took.
        first_token_s: Seconds to its first token, if one came.
        uncached_input_tokens: Prompt tokens computed.
        cached_input_tokens: Prompt tokens taken from the engine's prefix cache.
        output_tokens: Tokens generated by this attempt.
    """
    model = _model(model)
    outcome = outcome if outcome in OUTCOMES else OTHER
    _calls.labels(model, outcome).inc()
    if duration_s is not None:
        _duration.labels(model, outcome).observe(duration_s)
    if first_token_s is not None:
        _first_token.labels(model).observe(first_token_s)
    counts = (uncached_input_tokens, cached_input_tokens, output_tokens)
    for bucket, count in zip(BUCKETS, counts, strict=True):
        if count > 0:
            _tokens.labels(model, bucket).inc(count)


def cost_booked(
    *,
    model: str,
    billed_usd: Decimal = Decimal(0),
    waste_usd: Decimal = Decimal(0),
    saved_usd: Decimal = Decimal(0),
) -> None:
    """Count money that the ledger booked, in USD."""
    for kind, amount in (("billed", billed_usd), ("waste", waste_usd), ("saved", saved_usd)):
        if amount > 0:
            _cost.labels(_model(model), kind).inc(float(amount))


def call_resumed(*, model: str, tokens: int) -> None:
    """Count an attempt that went on from the journal and did not repeat ``tokens`` tokens."""
    _resumes.labels(_model(model)).inc()
    _resumed_tokens.labels(_model(model)).inc(max(0, tokens))


def tokens_wasted(*, cause: str, tokens: int) -> None:
    """Count tokens paid for without use."""
    if tokens > 0:
        _wasted.labels(_cause(cause)).inc(tokens)


def cache_lookup(*, hit: bool) -> None:
    """Count a look-up in the answer cache."""
    _cache.labels("hit" if hit else "miss").inc()


def hold_refused(*, code: str, scope: str) -> None:
    """Count a call that a budget or a key's state refused."""
    _refusals.labels(_code(code), _scope(scope)).inc()


def database_round_trips(count: int = 1) -> None:
    """Count round trips to Postgres."""
    _round_trips.inc(count)


def task_finished(status: str) -> None:
    """Count a task that reached a status: ``accepted`` by the API, the others by workers."""
    _tasks.labels(status if status in STATUSES else OTHER).inc()


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
