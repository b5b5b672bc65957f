"""Connection strings: which database of the server an operator's URL means."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict, make_conninfo

DEFAULT_DATABASE = "overline"


def target_database(url: str) -> str:
    """The database an admin URL is about: the one it names, or `overline`.

    `postgres` is every server's maintenance database and never ours, so it counts as none named.
    """
    named = conninfo_to_dict(url).get("dbname")
    return DEFAULT_DATABASE if named in (None, "", "postgres") else str(named)


def in_database(url: str, database: str) -> str:
    """The same server and user, another database (as a libpq connection string)."""
    return make_conninfo(url, dbname=database)


def database_url(url: str) -> str:
    """The URL of the target database itself."""
    return in_database(url, target_database(url))
