"""One exchange with Postgres: a span with a name that can be read, and a count.

Statements are constants of our code with parameters beside them, so a name can be taken from the
text; the text itself and the parameters are never recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode

from observability.metrics import record_round_trips

__all__ = ["database_exchange", "statement_name"]

_FUNCTION: Final = re.compile(
    r"\b(?:select|from|call)\s+(?:\*\s+from\s+)?([a-z_][\w.]*)\s*\(", re.I
)
_TABLE: Final = re.compile(r"\b(?:from|into|update|join)\s+(?:only\s+)?([a-z_][\w.]*)", re.I)
_VERB: Final = re.compile(r"\s*([a-z]+)", re.I)
_BUILT_IN: Final = frozenset(
    {"count", "sum", "coalesce", "max", "min", "exists", "unnest", "jsonb_to_recordset", "values"}
)


@lru_cache(maxsize=512)
def statement_name(sql: str) -> str:
    """Return the function that a statement calls, or its verb and table: ``select tasks``."""
    called = _FUNCTION.search(sql)
    if called and called[1].lower() not in _BUILT_IN:
        return called[1].lower()
    verb, table = _VERB.match(sql), _TABLE.search(sql)
    words = [match[1].lower() for match in (verb, table) if match]
    return " ".join(words) or "statement"


@contextmanager
def database_exchange(sql: str, *, round_trips: int = 1) -> Iterator[Span]:
    """Open a span around an exchange with Postgres and count its round trips.

    Args:
        sql: The statement, or the first one of several that travel together.
        round_trips: Network round trips it takes.
    """
    record_round_trips(round_trips)
    name = statement_name(sql)
    with trace.get_tracer(__name__).start_as_current_span(
        f"postgres {name}",
        kind=SpanKind.CLIENT,
        attributes={"db.system.name": "postgresql", "db.operation.name": name},
        # Postgres quotes rows and parameters in its errors: the code says what happened.
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            state = getattr(error, "sqlstate", None)
            span.set_attribute("error.type", str(state or type(error).__name__))
            span.set_status(StatusCode.ERROR)
            raise
