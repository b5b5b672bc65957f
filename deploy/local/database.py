"""The database of the stack: its server as a part, its schema and first key as a step."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote, urlsplit

from deploy.local.errors import StackError
from deploy.local.part import Part, Say
from deploy.local.plan import Plan
from deploy.local.postgres import STOP_SIGNAL, PostgresFolder
from deploy.local.processes import Launch

__all__ = ["PostgresPart", "prepare_schema"]


class PostgresPart(Part):
    """The server process."""

    name = "postgres"
    start_limit_s = 60.0  # recovery after a crash is part of a start
    stop_signal = STOP_SIGNAL
    patience_s = 20.0

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

    async def problem(self, pid: int) -> str | None:
        """Ask it a query."""
        ready = await asyncio.to_thread(self.where.is_ready)
        return None if ready else "does not answer a query"


def prepare_schema(plan: Plan, say: Say) -> str:
    """Bring roles, schema, catalogue and the demo identity up to date.

    Args:
        plan: The stack.
        say: Takes progress lines.

    Returns:
        A line about the outcome.

    Raises:
        StackError: A database of the user's own is not ready for use.
    """
    from store import bootstrap

    admin_url = _admin_url(plan)
    if admin_url is None:
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
    bootstrap.bootstrap(admin_url, app, plan.secrets.reader)
    say("migrations")
    bootstrap.migrate(admin_url)
    say("models, prices and routes")
    _sync_catalogue(plan, admin_url)
    say("demo organisation and key")
    token = bootstrap.ensure_demo_identity(admin_url)
    if token is not None:
        plan.secrets.api_key = token
        plan.secrets.save(plan.home)
    plan.write_settings()
    return f"schema {bootstrap.head_revision()}"


def _admin_url(plan: Plan) -> str | None:
    if plan.given.admin_database_url is not None:
        return plan.given.admin_database_url.get_secret_value()
    if "postgres" not in plan.ours:
        return None
    return PostgresFolder(
        plan.home.postgres, plan.ports["postgres"], plan.secrets.postgres
    ).admin_url
