"""The database as the rest of the project sees it: tenant-bound statements, one round trip each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import lru_cache
from typing import Any
from uuid import UUID

import psycopg

from observability.database import database_exchange
from store.errors import translate
from store.pool import Connection, Pool

LONGEST_STATEMENT_S = 30
"""Seconds that Postgres lets a statement of ours run, whether anybody waits for it or not."""

Row = dict[str, Any]
Params = Sequence[Any] | Mapping[str, Any]

_BIND = "select set_config('overline.organisation_id', %s, true)"


@lru_cache(maxsize=64)
def _bound_call(function: str, arguments: str, beside: str) -> str:
    # The function's first argument is what set_config returns, so the tenant is bound before the
    # function runs; OFFSET 0 keeps the planner from rearranging the two.
    also = f", {beside}(bound.organisation_id::uuid, %s) as {beside}" if beside else ""
    return (
        f"select f.*{also} from ({_BIND} offset 0) bound (organisation_id) cross join lateral"
        f" {function}(bound.organisation_id::uuid, {arguments}) f"
    )


class TenantConnection:
    """A connection inside a transaction that is bound to one organisation."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._connection = connection

    async def execute(self, sql: str, params: Params = ()) -> list[Row]:
        """Runs one statement (one round trip) and returns its rows."""
        with self._database.exchange(sql):
            cursor = await self._connection.execute(sql, params or None)
            return await _rows(cursor)


class Database:
    """A pool of connections to Postgres.

    Attributes:
        round_trips: network round trips made since opening, statements and transaction control
            alike. Opening a connection is not counted.
    """

    def __init__(self, url: str, pool: Pool) -> None:
        self.url = url
        self.round_trips = 0
        self._pool = pool

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        min_size: int = 1,
        max_size: int = 10,
        name: str = "overline",
        checkout_timeout_s: float = 5.0,
        prepare_threshold: int | None = 2,
    ) -> Database:
        """Connects.

        Args:
            url: libpq connection string or `postgresql://` URL.
            min_size: connections opened at once; 0 opens the first when it is needed.
            max_size: most connections held by this process.
            name: application name shown in `pg_stat_activity`.
            checkout_timeout_s: longest wait in seconds for a free or new connection.
            prepare_threshold: executions before a statement is prepared; None never prepares
                (needed behind a transaction pooler that does not track prepared statements).

        Raises:
            DatabaseUnavailable: Postgres cannot be reached.
        """
        pool = Pool(
            url,
            min_size=min_size,
            max_size=max_size,
            name=name,
            checkout_timeout_s=checkout_timeout_s,
            prepare_threshold=prepare_threshold,
        )
        await pool.open()
        return cls(url, pool)

    async def close(self) -> None:
        """Closes every connection."""
        await self._pool.close()

    async def run(self, organisation_id: UUID, sql: str, params: Params = ()) -> list[Row]:
        """Runs one statement for one organisation in its own transaction, in one round trip.

        Raises:
            DatabaseUnavailable: the connection was lost; the statement may have been committed.
        """
        return (await self.run_many(organisation_id, [(sql, params)]))[0]

    async def call(
        self,
        organisation_id: UUID,
        function: str,
        arguments: str,
        params: Sequence[Any],
        *,
        beside: tuple[str, Any] | None = None,
    ) -> list[Row]:
        """Calls one of our SQL functions for one organisation, in one round trip.

        The same as `run` in effect, but one statement instead of a pipeline of two, which is
        measurably cheaper in this process: for the hot path.

        Args:
            function: its name; its first parameter is the organisation.
            arguments: placeholders of the others, with casts where the type is not evident.
            params: their values.
            beside: another function of ours, with the one value it takes besides the organisation;
                its result is one more column, named after it.

        Returns:
            Its rows; a scalar result is the column `f`.
        """
        other, first = ("", ()) if beside is None else (beside[0], (beside[1],))
        try:
            async with self._pool.connection() as connection:
                with self.exchange(f"select {function}()"):
                    cursor = await connection.execute(
                        _bound_call(function, arguments, other),
                        (*first, str(organisation_id), *params),
                    )
                return await cursor.fetchall()
        except psycopg.Error as error:
            raise translate(error) from error

    async def run_many(
        self, organisation_id: UUID, statements: Iterable[tuple[str, Params]]
    ) -> list[list[Row]]:
        """Runs several statements in one transaction and still one round trip.

        The statements go out as one pipeline that ends in a single Sync, which PostgreSQL treats
        as one implicit transaction: it commits as a whole, or an error undoes all of it, without
        BEGIN, COMMIT or ROLLBACK having to travel.
        """
        statements = list(statements)
        bound = [(_BIND, (str(organisation_id),)), *statements]
        return (await self._pipeline(statements[0][0], bound))[1:]

    async def run_untenanted(self, sql: str, params: Params = ()) -> list[Row]:
        """Runs one statement bound to no organisation (one round trip).

        Only for tables that have no tenant and for security-definer functions: a tenant table
        raises `TenantUnbound`.
        """
        try:
            async with self._pool.connection() as connection:
                with self.exchange(sql):
                    cursor = await connection.execute(sql, params or None)
                return await _rows(cursor)
        except psycopg.Error as error:
            raise translate(error) from error

    async def run_untenanted_many(
        self, statements: Iterable[tuple[str, Params]]
    ) -> list[list[Row]]:
        """Runs several statements bound to no organisation: one transaction, one round trip."""
        statements = list(statements)
        return await self._pipeline(statements[0][0], statements)

    async def _pipeline(
        self, name: str, statements: Sequence[tuple[str, Params]]
    ) -> list[list[Row]]:
        try:
            async with self._pool.connection() as connection:
                cursors = []
                try:
                    with self.exchange(name):
                        async with connection.pipeline():
                            for sql, params in statements:
                                cursors.append(await connection.execute(sql, params or None))
                except psycopg.Error:
                    # psycopg takes a statement behind the one that failed for prepared, though the
                    # server skipped it: the connection's next use of it would fail.
                    await connection.close()
                    raise
                return [await _rows(cursor) for cursor in cursors]
        except psycopg.Error as error:
            raise translate(error) from error

    def exchange(self, sql: str) -> AbstractContextManager[object]:
        """Counts and traces one round trip. The statement's name is recorded, never its values."""
        self.round_trips += 1
        return database_exchange(sql)

    @asynccontextmanager
    async def transaction(self, organisation_id: UUID) -> AsyncIterator[TenantConnection]:
        """Opens a transaction bound to one organisation, for several dependent statements.

        Costs two round trips of its own: one that begins and binds, one that commits.
        """
        try:
            async with self._pool.connection() as connection:
                with self.exchange("begin"):
                    async with connection.pipeline():
                        await connection.execute("begin")
                        await connection.execute(_BIND, (str(organisation_id),))
                try:
                    yield TenantConnection(self, connection)
                except Exception:
                    if not connection.broken:
                        with self.exchange("rollback"):
                            await connection.execute("rollback")
                    raise
                with self.exchange("commit"):
                    await connection.execute("commit")
        except psycopg.Error as error:
            raise translate(error) from error


async def _rows(cursor: psycopg.AsyncCursor[Row]) -> list[Row]:
    # `cursor.description` says the same, and is made anew of every column.
    result = cursor.pgresult
    return await cursor.fetchall() if result is not None and result.nfields else []
