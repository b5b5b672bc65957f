"""A tool as its source describes it, before and after it is registered: one form, one digest."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import rfc8785

from activities.tool_schema import SchemaRefused, require_usable
from inference.json_schema import first_problem

__all__ = ["Answer", "Draft", "SourceRefused", "ToolRefused", "ToolUnavailable", "draft"]

DESCRIPTION_CHARS = 400


class SourceRefused(Exception):
    """The document or server cannot be used; the text says why."""


class ToolRefused(Exception):
    """The call cannot be made or did not go well; another try would meet the same."""


class ToolUnavailable(Exception):
    """The tool did not answer this time."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Answer:
    """What a tool answered."""

    text: str
    ok: bool = True


@dataclass(frozen=True)
class Draft:
    """A tool's definition, complete but for its registration's policies."""

    name: str
    description: str
    input_schema: dict[str, Any]
    target: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 of everything that says what the tool is and where a call goes."""
        canonical = rfc8785.dumps(
            {
                "name": self.name,
                "description": self.description,
                "input_schema": self.input_schema,
                "target": self.target,
            }
        )
        return hashlib.sha256(canonical).hexdigest()


def draft(
    source: str, operation: str, description: str, schema: dict[str, Any], target: dict[str, Any]
) -> Draft:
    """Return a draft whose schema was looked at.

    Raises:
        SourceRefused: The schema cannot be used.
    """
    short = re.sub(r"[^A-Za-z0-9_./-]", "_", operation).lstrip("./-")[:128]
    if not short:
        raise SourceRefused(f"operation {operation[:40]!r} has no name to call it by")
    made = Draft(
        name=f"{source}.{short}",
        description=" ".join(description.split())[:DESCRIPTION_CHARS],
        input_schema=schema,
        target=target,
    )
    try:
        require_usable(schema)
        # Whether arguments can be looked at by it is found out now, not at the first call.
        first_problem(rfc8785.dumps(schema).decode(), {})
        assert made.digest
    except SchemaRefused as error:
        raise SourceRefused(f"{made.name}: {error}") from None
    except (ValueError, TypeError, RecursionError):
        raise SourceRefused(f"{made.name}: its schema is not valid JSON Schema") from None
    return made
