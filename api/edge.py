"""The outermost layer of the API: an id, a log line and a metric for every request.

Plain ASGI, so that streams pass through unbuffered. It is also the last net: an exception that no
handler knows becomes a 500 problem document here, and the log gets its type and its frames, never
its text, which may quote a prompt.
"""

from __future__ import annotations

import logging
import time
import traceback
from pathlib import Path
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils.compat import uuid7

from api.error_shape import error_answer
from observability.metrics import REGISTRY
from workflows import errors

__all__ = ["Edge"]

log = logging.getLogger("overline.api")

REQUESTS = Counter(
    "overline_http_requests",
    "HTTP requests answered.",
    ["method", "route", "status"],
    registry=REGISTRY,
)
DURATION = Histogram(
    "overline_http_request_seconds",
    "Time to the first byte of the answer, in seconds.",
    ["method", "route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    registry=REGISTRY,
)
IN_FLIGHT = Gauge(
    "overline_http_requests_in_flight", "HTTP requests being answered.", registry=REGISTRY
)

_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"})


class Edge:
    """ASGI middleware: request id, security headers, access log, metrics, last net.

    Args:
        app: The application inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = str(uuid7())
        scope.setdefault("state", {})["request_id"] = request_id
        started = time.perf_counter()
        status = 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _mark(message, request_id)
                DURATION.labels(_method(scope), _route(scope)).observe(
                    time.perf_counter() - started
                )
            await send(message)

        IN_FLIGHT.inc()
        try:
            await self._app(scope, receive, send_marked)
        except Exception as exc:
            _log_exception(exc, request_id, scope)
            # Once an answer has begun there is no honest way to end it: the server closes the
            # connection, and the reader of a stream comes back with its last event id.
            if not status:
                await error_answer(
                    scope,
                    errors.Internal(
                        "Something went wrong on our side. It was logged under this request id."
                    ),
                )(scope, receive, send_marked)
        finally:
            IN_FLIGHT.dec()
            REQUESTS.labels(_method(scope), _route(scope), str(status)).inc()
            _log_access(scope, request_id, status, time.perf_counter() - started)


def _mark(message: Message, request_id: str) -> None:
    headers = MutableHeaders(scope=message)
    headers["X-Request-ID"] = request_id
    headers["X-Content-Type-Options"] = "nosniff"
    if "cache-control" not in headers:
        headers["Cache-Control"] = "no-store"


def _method(scope: Scope) -> str:
    method = str(scope["method"])
    return method if method in _METHODS else "other"


def _route(scope: Scope) -> str:
    """The route's template: a path would put ids and capability tokens into logs and metrics."""
    route: Any = scope.get("route")
    path = getattr(route, "path_format", None) or getattr(route, "path", None)
    return str(path) if path else "unmatched"


def _log_access(scope: Scope, request_id: str, status: int, seconds: float) -> None:
    if _route(scope) in ("/healthz", "/readyz", "/metrics"):
        return
    state: dict[str, Any] = scope.get("state", {})
    log.info(
        "%s %s %s",
        _method(scope),
        _route(scope),
        status,
        extra={
            "request_id": request_id,
            "duration_ms": round(seconds * 1000, 2),
            "key_id": state.get("key_id"),
        },
    )


def _log_exception(exc: BaseException, request_id: str, scope: Scope) -> None:
    frames = " < ".join(
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in reversed(traceback.extract_tb(exc.__traceback__)[-12:])
    )
    log.error(
        "unhandled %s in %s %s: %s",
        type(exc).__qualname__,
        _method(scope),
        _route(scope),
        frames,
        extra={"request_id": request_id},
    )
