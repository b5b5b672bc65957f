"""The database of the stack: its server as a part, its schema and first key as a step."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import psycopg

from deploy.local.errors import StackError
from deploy.local.part import Part, Say
from deploy.local.plan import Plan
from deploy.local.postgres_folder import INSTEAD, STOP_SIGNAL, PostgresFolder
from deploy.local.processes import Launch

if TYPE_CHECKING:
    from store.provision import CreatedKey

__all__ = ["PostgresPart", "admin_url", "prepare_schema"]


class PostgresPart(Part):
    """The server process."""

    name = "postgres"
    health_every_s = 5.0
    start_limit_s = 120.0  # recovery after a crash is part of a start
    stop_signal = STOP_SIGNAL
    patience_s = 20.0
    instead = INSTEAD

    def __init__(self, plan: Plan) -> None:
        self.where = PostgresFolder(
            plan.home.postgres, plan.ports["postgres"], plan.secrets.postgres
        )
        self._log = plan.home.log("postgres")

    @property
    def ready_text(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.where.port}"

    def prepare(self, say: Say) -> None:
        """Make the data folder when it is new."""
        if not (self.where.folder / "PG_VERSION").exists():
            say("making a new database")
        self.where.prepare(self._log)

    def launch(self) -> Launch:
        """Return the server's command line."""
        return self.where.launch()

    async def problem(self) -> str | None:
        """Ask it a query."""
        ready = await asyncio.to_thread(self.where.is_ready)
        return None if ready else "does not answer a query"


def prepare_schema(plan: Plan, say: Say) -> str:
    """Bring roles, schema and the demo identity up to date.

    Args:
        plan: The stack.
        say: Takes progress lines.

    Returns:
        A line about the outcome.

    Raises:
        StackError: A database of the user's own is not ready for use.
    """
    from store import bootstrap

    url = admin_url(plan)
    if url is None:
        current = bootstrap.current_revision(plan.database_url)
        head = bootstrap.head_revision()
        if current != head:
            raise StackError(
                f"The database of OVERLINE_DATABASE_URL has schema {current or 'none'}, this "
                f"version needs {head}. Set OVERLINE_ADMIN_DATABASE_URL to a role that may "
                "migrate it, and start again."
            )
        return f"schema {head} (your own database; nothing was changed)"
    say("roles and extensions")
    app = unquote(urlsplit(plan.database_url).password or "") or plan.secrets.app
    reader = unquote(urlsplit(plan.reader_url or "").password or "") or plan.secrets.reader
    bootstrap.bootstrap(url, app, reader)
    say("migrations")
    bootstrap.migrate(url)
    say("demo organisation and key")
    created = bootstrap.ensure_demo_identity(url)
    if created is None and plan.secrets.api_key is None:
        created = _another_demo_key(url)
    if created is not None:
        plan.secrets.api_key = created.token
        plan.secrets.save(plan.home)
    plan.write_settings()
    return f"schema {bootstrap.head_revision()}"


def _another_demo_key(url: str) -> CreatedKey | None:
    """A further key of the demo team: the first one was shown to another state folder."""
    from store.bootstrap import create_key
    from store.urls import database_url

    with psycopg.connect(database_url(url), connect_timeout=10) as session:
        found = session.execute(
            "select t.organisation_id, t.team_id from teams t join organisations o"
            " using (organisation_id) where o.name = 'demo' and t.name = 'demo' limit 1"
        ).fetchone()
    if found is None:
        return None
    return create_key(url, found[0], found[1], f"demo on {socket.gethostname()}")


def admin_url(plan: Plan) -> str | None:
    """Return a connection that may migrate, when there is one; holds a secret."""
    if plan.given.admin_database_url is not None:
        return plan.given.admin_database_url.get_secret_value()
    if "postgres" not in plan.ours:
        return None
    return PostgresFolder(
        plan.home.postgres, plan.ports["postgres"], plan.secrets.postgres
    ).admin_url
