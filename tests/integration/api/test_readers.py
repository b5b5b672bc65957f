"""Five hundred readers of one task on one process: they cost it neither statements nor polls."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import httpx2

from settings import Settings
from store.database import Database
from tests.integration.api.conftest import Tenant, serving
from tests.integration.api.played import PlayedTask

READERS = 500
ASLEEP = 25
WORDS = [f"word{number} " for number in range(30)]
IDLE_S = 6.0
# Of both ends of a connection: the readers live in this process too.
KILOBYTES_A_READER = 400
_EVENT = re.compile(rb"^id: \d+:(\d+)\r?$", re.MULTILINE)


class Reader:
    """A connection that keeps the numbers of the events it got, and nothing else."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._rest = b""

    async def connect(self, address: tuple[str, int], path: str, token: str) -> None:
        """Ask for the stream."""
        # As small as can be: a reader that sleeps must leave its events with the server.
        self._reader, self._writer = await asyncio.open_connection(*address, limit=2_048)
        self._writer.write(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        )

    async def read(self, upto: int | None = None) -> None:
        """Read to the end of the stream, or until a number was seen."""
        while upto is None or not self.seen or self.seen[-1] < upto:
            got = await self._reader.read(4_096)
            if not got:
                break
            whole, _, self._rest = (self._rest + got).rpartition(b"\n")
            self.seen += [int(number) for number in _EVENT.findall(whole)]
            if b"task.succeeded" in whole:
                break

    def close(self) -> None:
        """Let go of the connection."""
        self._writer.close()


async def _statements(api: httpx2.AsyncClient) -> float:
    text = (await api.get("/metrics")).text
    found = re.search(r"^overline_database_round_trips_total (\S+)$", text, re.MULTILINE)
    assert found
    return float(found[1])


def _kilobytes() -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


async def test_five_hundred_readers_cost_no_more_than_one(
    settings: Settings, db: Database, tenant: Tenant
) -> None:
    task = await (await PlayedTask(db, tenant).accept()).begin()
    async with serving(settings) as api:
        address = (api.base_url.host, api.base_url.port or 0)
        path = f"/v1/tasks/{task.id}/events"
        readers = [Reader() for _ in range(READERS)]

        async def join(some: list[Reader]) -> None:
            await asyncio.gather(*(one.connect(address, path, tenant.token) for one in some))
            await asyncio.gather(*(one.read(upto=2) for one in some))

        async def idle() -> float:
            before, since = await _statements(api), time.monotonic()
            await asyncio.sleep(IDLE_S)
            return (await _statements(api) - before) / (time.monotonic() - since)

        # What a process asks for its own ends, and for a task that is read.
        await join(readers[:1])
        own = await idle()

        memory = _kilobytes()
        for place in range(1, READERS, 50):
            await join(readers[place : place + 50])
        assert _kilobytes() - memory < KILOBYTES_A_READER * READERS

        # Nothing happens: the others add nothing to that.
        assert (await idle() - own) * IDLE_S < READERS / 10

        # Some do not take what they are sent. Everybody else gets all of it.
        awake = readers[ASLEEP:]
        before = await _statements(api)
        reading = asyncio.gather(*(reader.read() for reader in awake))
        for word in WORDS:
            await task.say(word)
        await task.end()
        async with asyncio.timeout(60):
            await reading
        spent = await _statements(api) - before
        whole = list(range(1, len(WORDS) + 5))
        assert all(reader.seen == whole for reader in awake)
        # Written and read: a few for each event, whoever reads it.
        assert spent < len(WORDS) * 5 + READERS / 10

        # Who slept finds everything where it was.
        async with asyncio.timeout(20):
            await asyncio.gather(*(reader.read() for reader in readers[:ASLEEP]))
        assert all(reader.seen == whole for reader in readers[:ASLEEP])
        for reader in readers:
            reader.close()
