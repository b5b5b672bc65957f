"""Text that PostgreSQL can keep.

A model may emit any code point. PostgreSQL stores neither NUL nor lone surrogates, and an answer
must not be lost over one: they become U+FFFD here. Token ids stay exact, so a generation that
continues from the journal is not affected.
"""

from __future__ import annotations

import re
from typing import Any

from psycopg.types.json import Jsonb

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(text: str) -> str:
    """Replaces what PostgreSQL cannot store by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def storable_or_none(text: str | None) -> str | None:
    """The same, with None left alone."""
    return None if text is None else storable(text)


def jsonb(value: Any) -> Jsonb | None:
    """Wraps a JSON value for a jsonb parameter; None stays SQL NULL."""
    return None if value is None else Jsonb(_clean(value))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value
