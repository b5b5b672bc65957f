"""A page of things, as OpenAI's lists show them."""

from __future__ import annotations

from typing import Any

__all__ = ["page_of"]


def page_of(documents: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """Return a page; `more`: others come after it."""
    return {
        "object": "list",
        "data": documents,
        "first_id": documents[0]["id"] if documents else None,
        "last_id": documents[-1]["id"] if documents else None,
        "has_more": more,
    }
