"""A small connection pool that notices a restarted Postgres without asking it.

Why not a general one: pools usually test a connection with a query on each checkout (a round trip
per call), or hand out the dead ones after a restart, one failed request each, and then wait in a
backoff. A connection that sits idle has nothing to read; when the server went away, its socket is
readable (the farewell, or end of file). One `poll` system call tells the two apart.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.rows import dict_row

from store.errors import DatabaseUnavailable, translate

Connection = psycopg.AsyncConnection[dict[str, Any]]


class Pool:
    """At most `max_size` connections, opened when needed, the most recently used one first."""

    def __init__(
        self,
        url: str,
        *,
        min_size: int,
        max_size: int,
        name: str,
        checkout_timeout_s: float,
        prepare_threshold: int | None,
    ) -> None:
        self._url = url
        self._min_size = min_size
        self._name = name
        self._timeout = checkout_timeout_s
        self._prepare_threshold = prepare_threshold
        self._slots = asyncio.Semaphore(max_size)
        self._idle: list[Connection] = []
        self._closed = False

    async def open(self) -> None:
        """Opens the first `min_size` connections.

        Raises:
            DatabaseUnavailable: Postgres cannot be reached.
        """
        opened = [await self._connect() for _ in range(self._min_size)]
        self._idle.extend(opened)

    async def close(self) -> None:
        """Closes idle connections now and those in use when they come back."""
        self._closed = True
        while self._idle:
            await self._idle.pop().close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lends a connection in autocommit mode with no transaction open.

        A connection that is not idle and in step with the server when the block ends is closed;
        so is one whose user was cancelled, because its protocol state is no longer certain.

        Raises:
            DatabaseUnavailable: no connection could be made, or none was free in time.
        """
        try:
            async with asyncio.timeout(self._timeout):
                await self._slots.acquire()
        except TimeoutError:
            raise DatabaseUnavailable("all database connections are in use") from None
        try:
            connection = self._take_idle() or await self._connect()
            healthy = False
            try:
                yield connection
                healthy = True
            except Exception:
                healthy = _is_clean(connection)
                raise
            finally:
                await self._give_back(connection, healthy=healthy)
        finally:
            self._slots.release()

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and not _readable(connection.fileno()):
                return connection
            connection.pgconn.finish()  # the server closed it: no farewell to send
        return None

    async def _give_back(self, connection: Connection, *, healthy: bool) -> None:
        if healthy and not self._closed and _is_clean(connection):
            self._idle.append(connection)
        else:
            await connection.close()

    async def _connect(self) -> Connection:
        if self._closed:
            raise DatabaseUnavailable("the database connection was closed by this process")
        try:
            async with asyncio.timeout(self._timeout):
                return await psycopg.AsyncConnection.connect(
                    self._url,
                    autocommit=True,
                    row_factory=dict_row,
                    prepare_threshold=self._prepare_threshold,
                    application_name=self._name,
                )
        except TimeoutError:
            raise DatabaseUnavailable("the database did not accept a connection") from None
        except psycopg.Error as error:
            raise translate(error) from None


def _readable(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poller.poll(0))


def _is_clean(connection: Connection) -> bool:
    if connection.closed or connection.broken:
        return False
    idle = psycopg.pq.TransactionStatus.IDLE
    off = psycopg.pq.PipelineStatus.OFF
    return connection.info.transaction_status == idle and connection.info.pipeline_status == off
