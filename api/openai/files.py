"""Files as OpenAI has them: kept line by line as they come, and how one is told of."""

from __future__ import annotations

from codecs import BOM_UTF8
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from api.openai.errors import OpenAIError
from store import files
from store.database import Database
from store.files import StoredFile

__all__ = ["FilePieces", "file_id_of", "file_object", "keep_of"]

MOST_LINES = 50_000
PART_BYTES = 1 << 20
_LEAST_KEPT, _MOST_KEPT = 3_600, 2_592_000


class _Line(msgspec.Struct):
    """What every line of an input has; the rest is looked at when a batch is made of it."""

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


_decode = msgspec.json.Decoder(_Line).decode


class FilePieces:
    """Takes the bytes of a file and writes pieces of whole lines, looking at each line.

    Args:
        db: The database.
        organisation_id: Whose file it is.
        file_id: The file, which was begun.
        most_bytes: Largest file.
        longest_line: Longest line, in bytes.
    """

    def __init__(
        self,
        db: Database,
        organisation_id: UUID,
        file_id: UUID,
        *,
        most_bytes: int,
        longest_line: int,
    ) -> None:
        self.size = 0
        self.lines = 0
        self._db = db
        self._organisation_id = organisation_id
        self._file_id = file_id
        self._most_bytes = most_bytes
        self._longest_line = longest_line
        self._held = bytearray()
        self._part = 0
        self._line = 0

    async def take(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            OpenAIError: They are too many (413), or a line of them is none (400).
        """
        self.size += len(data)
        if self.size > self._most_bytes:
            raise OpenAIError(
                413,
                f"A file may have at most {self._most_bytes} bytes.",
                code="file_too_large",
                param="file",
                headers={"x-should-retry": "false"},
            )
        self._held += data
        while len(self._held) >= PART_BYTES:
            end = self._held.rfind(b"\n") + 1
            if not end:
                if len(self._held) > self._longest_line:
                    raise self._bad(self._line + 1, self._too_long)
                return
            await self._write(end)

    async def end(self) -> None:
        """Write the rest.

        Raises:
            OpenAIError: A line is none, or there is no line (400).
        """
        if self._held:
            await self._write(len(self._held))
        if not self.lines:
            raise OpenAIError(400, "The file has no line.", code="empty_file", param="file")

    @property
    def _too_long(self) -> str:
        return f"it has more than {self._longest_line} bytes"

    async def _write(self, end: int) -> None:
        data = bytes(self._held[:end])
        del self._held[:end]
        for raw in data.removesuffix(b"\n").split(b"\n"):
            self._line += 1
            looked_at = raw.removeprefix(BOM_UTF8) if self._line == 1 else raw
            if looked_at.strip():
                self._look_at(looked_at)
        await files.add_part(self._db, self._organisation_id, self._file_id, self._part, data)
        self._part += 1

    def _look_at(self, raw: bytes) -> None:
        self.lines += 1
        if self.lines > MOST_LINES:
            raise OpenAIError(
                400,
                f"A file may have at most {MOST_LINES} lines.",
                code="too_many_lines",
                param="file",
                facts={"line": self._line},
            )
        if len(raw) > self._longest_line:
            raise self._bad(self._line, self._too_long)
        try:
            _decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            # Of a missing or wrong field the words are ours; of other faults they quote nothing.
            shape = isinstance(error, msgspec.ValidationError)
            why = (
                "it needs 'custom_id', 'method' and 'url', which are texts, and 'body', an object"
                if shape
                else "it is not a JSON object"
            )
            raise self._bad(self._line, why) from None

    def _bad(self, line: int, why: str) -> OpenAIError:
        return OpenAIError(
            400,
            f"Line {line} of the file cannot be used: {why}.",
            code="invalid_jsonl",
            param="file",
            facts={"line": line},
        )


def file_object(file: StoredFile) -> dict[str, Any]:
    """Return the document of a file."""
    return {
        "id": f"file-{file.file_id.hex}",
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created_at.timestamp()),
        "expires_at": int(file.expires_at.timestamp()),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def file_id_of(text: str) -> UUID | None:
    """Return a file's id; None for what is none."""
    try:
        return UUID(hex=text.removeprefix("file-")) if text.startswith("file-") else None
    except ValueError:
        return None


def keep_of(anchor: Any, seconds: Any, default_days: int, param: str) -> timedelta:
    """Return how long a file is kept.

    Raises:
        OpenAIError: It cannot be kept as is asked (400).
    """
    if anchor is None and seconds is None:
        return timedelta(days=default_days)
    if anchor != "created_at":
        raise OpenAIError(
            400,
            f"'{param}.anchor' must be 'created_at'.",
            code="invalid_value",
            param=f"{param}.anchor",
        )
    whole = str(seconds)
    if not (whole.isascii() and whole.isdigit() and len(whole) < 9) or isinstance(seconds, bool):
        whole = "0"
    if not _LEAST_KEPT <= int(whole) <= _MOST_KEPT:
        raise OpenAIError(
            400,
            f"'{param}.seconds' must be {_LEAST_KEPT} to {_MOST_KEPT}.",
            code="invalid_value",
            param=f"{param}.seconds",
        )
    return timedelta(seconds=int(whole))
