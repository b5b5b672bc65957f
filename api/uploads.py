"""A form with a file in it, read as it comes: no more of the file is in memory than a piece.

Starlette's own reader spools a whole file to disk before a route sees it; here each piece is in
Postgres before the next one is asked for, and an upload that is too large ends when it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from api.openai.errors import OpenAIError

__all__ = ["Form", "read_form"]

_MOST_FIELDS = 16
_LONGEST_FIELD = 1_024
_LONGEST_NAME = 255

TakeData = Callable[[bytes], Awaitable[None]]


@dataclass
class Form:
    """What a form said besides its file.

    Attributes:
        fields: Its fields by name.
        filename: Name of its file; None: it had none.
    """

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None


class _Reader:
    """Takes the parser's events apart: headers, fields, and pieces of the file."""

    def __init__(self, file_field: str) -> None:
        self.form = Form()
        self.pieces: list[bytes] = []
        self.ended = False
        self._file_field = file_field
        self._header: tuple[bytearray, bytearray] = (bytearray(), bytearray())
        self._disposition = b""
        self._name: str | None = None
        self._value = bytearray()

    def parser(self, boundary: bytes) -> MultipartParser:
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begins,
                "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                "on_header_end": self._header_ends,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_part_end": self._part_ends,
                "on_end": self._ends,
            },
        )

    def _part_begins(self) -> None:
        self._disposition, self._name, self._value = b"", None, bytearray()

    def _header_ends(self) -> None:
        name, value = self._header
        if bytes(name).lower() == b"content-disposition":
            self._disposition = bytes(value)
        self._header = (bytearray(), bytearray())

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        self._name = name
        if name == self._file_field:
            if self.form.filename is not None:
                raise _refused(f"'{name}' is given twice.", name)
            filename = options.get(b"filename", b"").decode("utf-8", "replace")
            cleaned = "".join(c for c in filename if c.isprintable()).strip()[:_LONGEST_NAME]
            self.form.filename = cleaned or "upload.jsonl"
        elif name in self.form.fields:
            raise _refused("A field of the form is given twice.", name[:80])
        elif len(self.form.fields) >= _MOST_FIELDS:
            raise _refused("The form has too many fields.", None)

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name == self._file_field:
            self.pieces.append(data[start:end])
            return
        self._value.extend(data[start:end])
        if len(self._value) > _LONGEST_FIELD:
            raise _refused("A field of the form is too long.", (self._name or "")[:80])

    def _part_ends(self) -> None:
        if self._name is not None and self._name != self._file_field:
            self.form.fields[self._name] = self._value.decode("utf-8", "replace")

    def _ends(self) -> None:
        self.ended = True


async def read_form(
    content_type: str, body: AsyncIterator[bytes], *, file_field: str, take: TakeData
) -> Form:
    """Read a form, and hand over its file piece by piece.

    Args:
        content_type: The request's.
        body: The request's, as it comes.
        file_field: Name of the field that is the file.
        take: Is given the pieces of the file in order.

    Raises:
        OpenAIError: It is no form (415), or not all of one (400).
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise OpenAIError(
            415,
            "Send the file as a form: 'Content-Type: multipart/form-data'.",
            code="invalid_content_type",
        )
    reader = _Reader(file_field)
    try:
        parser = reader.parser(boundary)
        async for chunk in body:
            parser.write(chunk)
            pieces, reader.pieces = reader.pieces, []
            for piece in pieces:
                await take(piece)
        parser.finalize()
    except FormParserError:
        raise _refused("The form cannot be read.", None) from None
    if not reader.ended:
        raise _refused("The form ends in the middle.", None)
    return reader.form


def _refused(message: str, param: str | None) -> OpenAIError:
    return OpenAIError(400, message, code="invalid_form", param=param)
