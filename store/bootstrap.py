"""Prepares a PostgreSQL server: roles, database, extension, schema. Synchronous, for operators.

Four roles: `overline_owner` owns everything and cannot log in; `overline_app` is what processes
log in as and owns nothing; `overline_definer` owns the few functions that may look past the
tenant fence and cannot log in; `overline_reader` reads everything and changes nothing (people).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import sql
from sqlalchemy import create_engine
from sqlalchemy.engine import Connection
from sqlalchemy.pool import NullPool

from store.database import LONGEST_STATEMENT_S
from store.errors import StoreError, translate
from store.provision import create_key, ensure_demo_identity, set_budget
from store.urls import database_url, in_database, target_database

__all__ = [
    "bootstrap",
    "create_key",
    "current_revision",
    "ensure_demo_identity",
    "head_revision",
    "migrate",
    "set_budget",
]

OLDEST_SERVER = 180000
_MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"
# Any number will do, as long as nobody else locks it: "ovrlnmig" as a 64-bit integer.
_MIGRATION_LOCK = 0x6F76726C6E6D6967


def bootstrap(admin_url: str, app_password: str, reader_password: str) -> None:
    """Makes or refreshes roles, database and the vector extension. Safe to repeat.

    Args:
        admin_url: a superuser's connection. Names the database to make; `overline` if it names
            none or `postgres`.
        app_password: password of `overline_app`.
        reader_password: password of `overline_reader`.

    Raises:
        StoreError: the server is older than PostgreSQL 18.
        DatabaseUnavailable: the server cannot be reached.
    """
    database = target_database(admin_url)
    with _admin(in_database(admin_url, "postgres")) as connection:
        if connection.info.server_version < OLDEST_SERVER:
            raise StoreError("PostgreSQL 18 or newer is needed")
        for role, options in (
            ("overline_owner", "nologin"),
            ("overline_definer", "nologin bypassrls"),
            ("overline_app", "login"),
            ("overline_reader", "login bypassrls"),
        ):
            _ensure_role(connection, role, options)
        _set_password(connection, "overline_app", app_password)
        _set_password(connection, "overline_reader", reader_password)
        # The owner hands functions over to the definer but does not act with its rights.
        connection.execute("grant overline_definer to overline_owner with inherit false, set true")
        for statement in (
            f"alter role overline_app set statement_timeout = '{LONGEST_STATEMENT_S}s'",
            "alter role overline_app set lock_timeout = '10s'",
            "alter role overline_app set idle_in_transaction_session_timeout = '60s'",
            "alter role overline_reader set default_transaction_read_only = on",
            "alter role overline_reader set statement_timeout = '5min'",
        ):
            connection.execute(sql.SQL(statement))
        name = sql.Identifier(database)
        found = connection.execute("select from pg_database where datname = %s", (database,))
        if found.fetchone() is None:
            connection.execute(
                sql.SQL(
                    "create database {} owner overline_owner encoding 'UTF8' template template0"
                ).format(name)
            )
        connection.execute(sql.SQL("revoke all on database {} from public").format(name))
        connection.execute(
            sql.SQL("grant connect on database {} to overline_app, overline_reader").format(name)
        )
    with _admin(database_url(admin_url)) as connection:
        connection.execute("create extension if not exists vector")


def migrate(admin_url: str, *, revision: str = "head") -> str:
    """Brings the schema to a revision, one process at a time, and returns the revision.

    Args:
        admin_url: a superuser's direct connection (no transaction pooler in between), to the
            database that `bootstrap` made.
        revision: where to go; `head` by default.
    """
    with _engine_connection(database_url(admin_url)) as connection:
        connection.exec_driver_sql(f"select pg_advisory_lock({_MIGRATION_LOCK})")
        connection.commit()
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.commit()
        connection.exec_driver_sql("reset role")
        connection.exec_driver_sql("select ensure_partitions(12)")
        connection.commit()
        current = MigrationContext.configure(connection).get_current_revision()
    return current or ""


def current_revision(url: str) -> str | None:
    """The revision a database is at; None when it was never migrated.

    Args:
        url: any role's connection to the database.
    """
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            known = connection.execute("select to_regclass('public.alembic_version')").fetchone()
            if known is None or known[0] is None:
                return None
            row = connection.execute("select version_num from public.alembic_version").fetchone()
            return str(row[0]) if row else None
    except psycopg.Error as error:
        raise translate(error) from error


def head_revision() -> str:
    """The revision this code expects."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    if head is None:
        raise StoreError("the migrations folder holds no revision")
    return head


def alembic_config() -> Config:
    """Alembic's configuration, without a file of its own."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    # The revisions import `migrations.sql`; an installed console script has no project root.
    config.set_main_option("prepend_sys_path", str(_MIGRATIONS.parent))
    config.set_main_option("path_separator", "os")
    return config


@contextmanager
def _admin(url: str) -> Iterator[psycopg.Connection]:
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            yield connection
    except psycopg.Error as error:
        raise translate(error) from error


@contextmanager
def _engine_connection(url: str) -> Iterator[Connection]:
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool
    )
    try:
        with engine.connect() as connection:
            yield connection
    except psycopg.Error as error:
        raise translate(error) from error
    finally:
        engine.dispose()


def _ensure_role(connection: psycopg.Connection, role: str, options: str) -> None:
    exists = connection.execute("select from pg_roles where rolname = %s", (role,)).fetchone()
    verb = "create" if exists is None else "alter"
    base = "nosuperuser nocreatedb nocreaterole noreplication"
    bypass = "" if "bypassrls" in options else "nobypassrls"
    connection.execute(
        sql.SQL("{} role {} {}").format(
            sql.SQL(verb), sql.Identifier(role), sql.SQL(f"{base} {bypass} {options}")
        )
    )


def _set_password(connection: psycopg.Connection, role: str, password: str) -> None:
    # Hashed on this side: the server's log must not be able to show it.
    verifier = connection.pgconn.encrypt_password(
        password.encode(), role.encode(), b"scram-sha-256"
    )
    connection.execute(
        sql.SQL("alter role {} password {}").format(
            sql.Identifier(role), sql.Literal(verifier.decode())
        )
    )
