"""A form with a file, read as it comes, whichever way it is cut into chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from api.openai.errors import OpenAIError
from api.uploads import Form, read_form

FORM = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a\x07.jsonl"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\none\r\n--two\nthree\r\n--b--\r\n"
)


async def _read(body: bytes, size: int, kind: str = "multipart/form-data; boundary=b") -> tuple:
    taken = bytearray()

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    async def take(data: bytes) -> None:
        taken.extend(data)

    return await read_form(kind, chunks(), file_field="file", take=take), bytes(taken)


@pytest.mark.parametrize("size", [1, 7, 1_000])
async def test_the_file_is_what_was_sent(size: int) -> None:
    form, content = await _read(FORM, size)
    assert form == Form({"purpose": "batch"}, "a.jsonl")
    assert content == b"one\r\n--two\nthree"


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (FORM, "application/json", 415),
        (FORM, "multipart/form-data", 415),
        (FORM[:-8], "multipart/form-data; boundary=b", 400),
        (FORM, "multipart/form-data; boundary=c", 400),
        (b"", "multipart/form-data; boundary=b", 400),
        (
            FORM.replace(b'"purpose"', b'"file"; filename="x"'),
            "multipart/form-data; boundary=b",
            400,
        ),
        (
            FORM.replace(b"\r\nbatch", b"\r\n" + b"x" * 1_025),
            "multipart/form-data; boundary=b",
            400,
        ),
    ],
)
async def test_what_is_no_form_is_refused(body: bytes, kind: str, status: int) -> None:
    with pytest.raises(OpenAIError) as refused:
        await _read(body, 100, kind)
    assert refused.value.status == status
