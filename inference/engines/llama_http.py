"""A minimal HTTP/1.1 client for llama.cpp's own listener on loopback.

Standard library only, since it runs in the engine's environment; and a dropped connection is how
llama.cpp learns that a request is no longer wanted, so the connection must be ours to drop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


class HttpRefusal(Exception):
    """llama.cpp answered with an error.

    Attributes:
        status: HTTP status.
        kind: llama.cpp's name of the error.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


@dataclass(frozen=True)
class Listener:
    """Where llama.cpp listens and the key it wants."""

    host: str
    port: int
    key: str

    @classmethod
    def at(cls, address: str, key: str) -> Listener:
        """From an address such as http://127.0.0.1:1234."""
        parts = urlsplit(address)
        assert parts.hostname
        assert parts.port
        return cls(parts.hostname, parts.port, key)

    async def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One request, one JSON answer.

        Raises:
            HttpRefusal: The answer is an error.
            OSError: The connection broke.
        """
        async with self._posted(path, body) as answer:
            raw = b"".join([part async for part in answer])
        return dict(json.loads(raw))

    async def stream(
        self, path: str, body: dict[str, Any]
    ) -> AsyncGenerator[list[dict[str, Any]], None]:
        """One request, a stream of events; those that arrived together come together.

        Closing the generator drops the connection.

        Raises:
            HttpRefusal: The answer is an error.
            OSError: The connection broke.
        """
        async with self._posted(path, body) as answer:
            rest = b""
            async for part in answer:
                *whole, rest = (rest + part).split(b"\n\n")
                events = [json.loads(e[6:]) for e in whole if e.startswith(b"data: {")]
                for event in events:
                    if "error" in event:
                        raise _refusal(500, event)
                if events:
                    yield events

    @asynccontextmanager
    async def _posted(
        self, path: str, body: dict[str, Any]
    ) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 24)
        try:
            raw = json.dumps(body).encode()
            head = (
                f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n"
                f"Authorization: Bearer {self.key}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(raw)}\r\n\r\n"
            )
            writer.write(head.encode() + raw)
            await writer.drain()
            answer = await _Answer.read(reader)
            if answer.status != 200:
                content = b"".join([part async for part in answer.parts()])
                raise _refusal(answer.status, json.loads(content or b"{}"))
            parts = answer.parts()
            try:
                yield parts
            finally:
                await parts.aclose()
        finally:
            # Not a polite close: llama.cpp must notice at its next token.
            writer.transport.abort()


class _Answer:
    def __init__(self, reader: asyncio.StreamReader, status: int, headers: dict[str, str]) -> None:
        self._reader = reader
        self.status = status
        self._headers = headers

    @classmethod
    async def read(cls, reader: asyncio.StreamReader) -> _Answer:
        raw = await reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return cls(reader, int(first.split()[1]), headers)

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives; chunks that are already here are joined."""
        if self._headers.get("transfer-encoding") != "chunked":
            length = int(self._headers.get("content-length", "-1"))
            yield await (self._reader.readexactly(length) if length >= 0 else self._reader.read())
            return
        waiting = bytearray()
        while True:
            got = await self._reader.read(1 << 16)
            if not got:
                raise ConnectionResetError("llama.cpp closed the connection in mid-answer")
            waiting += got
            out, ended = _unchunk(waiting)
            if out:
                yield out
            if ended:
                return


def _unchunk(waiting: bytearray) -> tuple[bytes, bool]:
    """Takes every whole chunk off the front."""
    out = bytearray()
    while (at := waiting.find(b"\r\n")) >= 0:
        size = int(bytes(waiting[:at]).split(b";")[0], 16)
        if size == 0:
            return bytes(out), True
        if len(waiting) < at + 4 + size:
            break
        out += waiting[at + 2 : at + 2 + size]
        del waiting[: at + 4 + size]
    return bytes(out), False


def _refusal(status: int, answer: dict[str, Any]) -> HttpRefusal:
    error = answer.get("error", {})
    if not isinstance(error, dict):
        error = {"message": str(error)}
    return HttpRefusal(
        int(error.get("code", status)), str(error.get("type", "")), str(error.get("message", ""))
    )
