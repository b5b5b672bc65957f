"""What the `migrate` container runs once a deployment: roles, schema, catalogue, a first key.

    python -P -m deploy.compose.migrate [--deploy MODEL=HOST:PORT ...]

Reads OVERLINE_ADMIN_DATABASE_URL, and the roles' passwords from OVERLINE_DATABASE_URL and
OVERLINE_READER_DATABASE_URL. The key of the demo organisation is printed the one time it is made.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from deploy.local.catalogue import entries, with_upstreams
from deploy.local.errors import StackError
from settings import Settings, load_settings
from store import bootstrap, catalogue
from store.database import Database
from store.urls import database_url

__all__ = ["main", "moved"]


def main() -> int:
    """Migrate; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--deploy", action="append", default=[], metavar="MODEL=HOST:PORT",
        help="a model that is served elsewhere than the others",
    )  # fmt: skip
    chosen = parser.parse_args()
    try:
        _migrate(load_settings(), moved(chosen.deploy))
    except StackError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def moved(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Read `MODEL=HOST:PORT[,HOST:PORT]` words.

    Raises:
        StackError: A word is something else.
    """
    found: dict[str, tuple[str, ...]] = {}
    for word in words:
        model, sign, urls = word.partition("=")
        if not (model and sign and urls):
            raise StackError(f"--deploy takes MODEL=HOST:PORT, not {word!r}")
        found[model] = tuple(urls.split(","))
    return found


def _migrate(settings: Settings, elsewhere: dict[str, tuple[str, ...]]) -> None:
    if settings.admin_database_url is None or settings.reader_database_url is None:
        raise StackError("OVERLINE_ADMIN_DATABASE_URL and OVERLINE_READER_DATABASE_URL are needed.")
    admin = settings.admin_database_url.get_secret_value()
    bootstrap.bootstrap(
        admin,
        _password(settings.database_url.get_secret_value()),
        _password(settings.reader_database_url.get_secret_value()),
    )
    sys.stdout.write(f"schema {bootstrap.migrate(admin)}\n")
    models, deployments, prices, routes = entries(
        settings.models, settings.models_folder, settings.triton_urls
    )
    deployments = [
        replace(each, engine="tensorrt_llm", urls=elsewhere[each.model])
        if each.model in elsewhere
        else each
        for each in deployments
    ]

    models, deployments, prices, routes = with_upstreams(
        (models, deployments, prices, routes),
        settings.upstreams,
        _say,
    )

    async def sync() -> None:
        database = await Database.open(database_url(admin), max_size=1, name="overline migrate")
        try:
            await catalogue.sync_catalogue(database, models, deployments, prices, routes)
        finally:
            await database.close()

    asyncio.run(sync())
    created = bootstrap.ensure_demo_identity(admin)
    if created is not None:
        sys.stdout.write(f"OVERLINE_API_KEY={created.token}\n")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _password(url: str) -> str:
    password = urlsplit(url).password
    if not password:
        raise StackError("The database URLs must carry the passwords that the roles get.")
    return unquote(password)


if __name__ == "__main__":
    sys.exit(main())
