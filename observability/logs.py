"""Logs of every process: one JSON object a line on stderr, with the ids of the current span.

Lines carry a message, the identifiers of ``names.ID_FIELDS`` given as ``extra=``, and nothing
else: other extras are dropped, because they might be content. Secrets are redacted last, whatever
library wrote them.

Start uvicorn with ``log_config=None``, or it puts its own handlers back.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, TextIO

from opentelemetry import trace

from observability.names import ID_FIELDS
from observability.redaction import Redactor, secrets_of
from settings import Settings

__all__ = ["JsonFormatter", "setup_logging"]

LONGEST_TEXT: Final = 8_192
"""Longest message or stack in a line, in characters; the end of a stack is what matters."""

# What Temporal's adapters put into `extra`, by our names for it.
_TEMPORAL_EXTRAS: Final = ("temporal_activity", "temporal_workflow")
_TEMPORAL_FIELDS: Final = {
    "workflow_id": "workflow_id",
    "run_id": "run_id",
    "workflow_run_id": "run_id",
    "activity_type": "activity_type",
    "attempt": "attempt",
}

# What this logger tells of are failures of activities and workflows. Their texts may quote a prompt
# (an engine's complaint about it, say), and are in the history, encrypted, for those who may read.
_TELLS_OF_CONTENT: Final = "temporalio"

# Loggers that bring their own handlers, or are chatty at INFO with things nobody acts on.
_ROUTED: Final = ("uvicorn", "uvicorn.error", "uvicorn.access", "temporalio", "fastapi", "alembic")
_QUIET: Final = ("httpx2", "httpcore2", "asyncio", "urllib3", "opentelemetry")


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object without secrets.

    Args:
        service: Name of the process kind.
        redact: Takes secrets out of a text.
    """

    def __init__(self, service: str, redact: Callable[[str], str]) -> None:
        super().__init__()
        self._service = service
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line break in it."""
        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._text(_message(record)),
            "service": self._service,
        }
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            line["trace_id"] = trace.format_trace_id(span.trace_id)
            line["span_id"] = trace.format_span_id(span.span_id)
        line.update(self._ids(record))
        if record.exc_info and record.exc_info[1] is not None:
            kind, error, _ = record.exc_info
            line["error"] = {
                "type": kind.__name__ if kind else type(error).__name__,
                "stack": self._text(
                    _stack_without_texts(error)
                    if record.name.partition(".")[0] == _TELLS_OF_CONTENT
                    else self.formatException(record.exc_info)
                ),
            }
        elif record.stack_info:
            line["stack"] = self._text(record.stack_info)
        return json.dumps(line, ensure_ascii=False, default=str)

    def _ids(self, record: logging.LogRecord) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for extra in _TEMPORAL_EXTRAS:
            details = getattr(record, extra, None)
            if isinstance(details, dict):
                found.update(
                    (ours, details[theirs])
                    for theirs, ours in _TEMPORAL_FIELDS.items()
                    if theirs in details
                )
        # An id that the caller names wins over the one Temporal adds.
        found.update((name, value) for name, value in vars(record).items() if name in ID_FIELDS)
        return {
            name: value if isinstance(value, int | float) else self._text(str(value))
            for name, value in found.items()
            if value is not None
        }

    def _text(self, text: str) -> str:
        # Redact before cutting: half a secret matches no pattern.
        text = self._redact(text)
        if len(text) <= LONGEST_TEXT:
            return text
        half = LONGEST_TEXT // 2
        return f"{text[:half]} … [{len(text) - 2 * half} characters left out] … {text[-half:]}"


def setup_logging(settings: Settings, service: str, stream: TextIO | None = None) -> None:
    """Route all logging of this process to JSON lines; a second call replaces the first.

    Uncaught exceptions of the process and its threads, and Python's warnings, become lines too.

    Args:
        settings: ``log_level`` is the lowest level written; the settings' secrets are redacted.
        service: Name of the process kind, such as ``overline-worker``.
        stream: Where to; default stderr.

    Raises:
        ValueError: ``log_level`` is no level's name.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(service, Redactor(secrets_of(settings))))
    root = logging.getLogger()
    for other in list(root.handlers):
        if isinstance(other.formatter, JsonFormatter) or type(other) is logging.StreamHandler:
            root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(settings.log_level.upper())
    for name in _ROUTED:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    noise = logging.getLogger("opentelemetry.context")
    noise.filters.clear()
    noise.addFilter(_is_news)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def _is_news(record: logging.LogRecord) -> bool:
    """Drop what a stopping worker's open workflows cause by the dozen, each with a stack.

    Their coroutines are closed by the garbage collector, in no context; nothing is lost by that.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not (
        record.msg == "Failed to detach context"
        and isinstance(error, ValueError)
        and "different Context" in str(error)
    )


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        # A call with wrong arguments must cost its own text, not the line.
        return f"{record.msg} [message arguments do not fit]"


def _stack_without_texts(error: BaseException) -> str:
    """Return where an error and its causes were raised, and their types: nothing they say."""
    told: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        where = "".join(traceback.format_tb(link.__traceback__))
        told.append(f"{where}{type(link).__module__}.{type(link).__qualname__}\n")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    # As Python does: the cause first.
    return "\nwhich caused:\n".join(reversed(told))


def _log_uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger("overline").critical(
        "the process ends by an uncaught error", exc_info=(kind, error, traceback)
    )


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is None or issubclass(args.exc_type, SystemExit):
        return
    logging.getLogger("overline").critical(
        "a thread ended by an uncaught error",
        exc_info=(args.exc_type, args.exc_value, args.exc_traceback),
    )
