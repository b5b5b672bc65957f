"""Every line of a batch's input looked at before any of them is made, and filed."""

from __future__ import annotations

import asyncio
import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from activities.batches.surface import LineCall, Surface
from activities.lane.embedding import embedder_of
from activities.lane.options import options_of
from store.batch_lines import NewLine
from store.catalogue import Catalogue

__all__ = ["MOST_ERRORS", "Checked", "Checker"]

MOST_ERRORS = 100
#: Lines looked at between two breaths: others of this process wait no longer than that.
AT_ONCE = 50
_LONGEST_ID = 512
_FIELDS = frozenset({"custom_id", "method", "url", "body"})


class _Wrong(Exception):
    """A line cannot be used; says why, in OpenAI's words."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


@dataclass
class Checked:
    """What was found.

    Attributes:
        lines: Those that can be made.
        errors: What is wrong with others: `code`, `message`, `param`, `line`.
    """

    lines: list[NewLine] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)


class Checker:
    """Looks at one batch's lines, piece by piece of its file.

    Args:
        surface: What a line may say.
        catalogue: Who could answer it.
        endpoint: What every line must ask for.
        most_bytes: Longest line.
    """

    def __init__(
        self, surface: Surface, catalogue: Catalogue, *, endpoint: str, most_bytes: int
    ) -> None:
        self.checked = Checked()
        self._surface = surface
        self._catalogue = catalogue
        self._endpoint = endpoint
        self._most_bytes = most_bytes
        self._part = 0
        self._line = 0
        self._seen: dict[str, int] = {}

    @property
    def gives_up(self) -> bool:
        """Whether enough is wrong to say no more of it."""
        return len(self.checked.errors) >= MOST_ERRORS

    async def take(self, data: bytes) -> None:
        """Look at the next piece of the file; it holds whole lines."""
        for count, (start, raw) in enumerate(_lines(data)):
            self._line += 1
            # Some editors begin a file with a mark that says it is UTF-8.
            mark = len(BOM_UTF8) if self._line == 1 and raw.startswith(BOM_UTF8) else 0
            if raw[mark:].strip():
                self._look_at(start + mark, raw[mark:])
            if self.gives_up:
                return
            if count % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
        self._part += 1

    def _look_at(self, start: int, raw: bytes) -> None:
        call: LineCall | None = None
        try:
            custom_id, call = self._read(raw)
            first = self._seen.setdefault(custom_id, self._line)
            if first != self._line:
                raise _Wrong(
                    "duplicate_custom_id",
                    f"The 'custom_id' of this line is that of line {first} as well.",
                    "custom_id",
                )
            waits_for = self._class_of(call)
        except Exception as error:
            self.checked.errors.append(self._told(error, call))
            return
        self.checked.lines.append(
            NewLine(self._line, custom_id, waits_for, self._part, start, len(raw))
        )

    def _read(self, raw: bytes) -> tuple[str, LineCall]:
        if len(raw) > self._most_bytes:
            raise _Wrong(
                "line_too_long", f"A line may have at most {self._most_bytes} bytes.", None
            )
        try:
            line = json.loads(raw.decode("utf-8"))
        except (ValueError, RecursionError):
            raise _Wrong("invalid_json_line", "This line is not a JSON object.") from None
        if not isinstance(line, dict):
            raise _Wrong("invalid_json_line", "This line is not a JSON object.")
        for name in ("custom_id", "method", "url", "body"):
            if line.get(name) is None:
                raise _Wrong(
                    "missing_required_parameter", f"Missing required parameter: '{name}'.", name
                )
        for name in line:
            if name not in _FIELDS:
                known = name.encode("utf-8", "replace").decode()[:80]
                raise _Wrong("unknown_parameter", f"Unknown parameter: '{known}'.", known)
        custom_id = line["custom_id"]
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _LONGEST_ID:
            raise _Wrong(
                "invalid_value", f"'custom_id' must be 1 to {_LONGEST_ID} characters.", "custom_id"
            )
        if not custom_id.isprintable():
            raise _Wrong("invalid_value", "'custom_id' must be printable.", "custom_id")
        if line["method"] != "POST":
            raise _Wrong("invalid_method", "'method' must be 'POST'.", "method")
        if line["url"] != self._endpoint:
            raise _Wrong(
                "mismatched_endpoint",
                f"'url' must be the batch's endpoint, '{self._endpoint}'.",
                "url",
            )
        return custom_id, self._surface.read(self._endpoint, line["body"])

    def _class_of(self, call: LineCall) -> str:
        """Return whose engines a call waits for; it raises what the call itself would be told."""
        if call.texts is not None:
            return embedder_of(self._catalogue, call.spec).deployment.deployment_class
        return options_of(self._catalogue, call.spec)[0].deployment.deployment_class

    def _told(self, error: Exception, call: LineCall | None) -> dict[str, Any]:
        if isinstance(error, _Wrong):
            code: str | None = error.code
            message, param = error.message, error.param
        else:
            told = self._surface.told(error, "", call)
            code, message = told.code, told.message
            param = f"body.{told.param}" if told.param else "body"
        return {"code": code, "message": message, "param": param, "line": self._line}


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield every line with the place it begins at."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        yield start, data[start:end]
        start = end + 1
