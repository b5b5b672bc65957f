"""`overline org`: organisations, made by who operates the database."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from api.cli.render import console, fail, money, print_json, print_table
from deploy.local.errors import StackError
from deploy.local.home import Home, Secrets
from deploy.local.postgres_folder import PostgresFolder
from deploy.local.state import read_state
from settings import Settings, load_settings
from store.errors import StoreError
from store.identity import ROLES
from store.provision import (
    create_key,
    create_organisation,
    create_team,
    list_organisations,
    note_operator,
)

__all__ = ["org"]

org = typer.Typer(no_args_is_help=True, add_completion=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
_UNREACHABLE = 3
#: An amount has nine digits before the point, and nine behind it.
_NO_CAP_FROM = 10**9


@org.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What it is called.")],
    team: Annotated[str, typer.Option(help="Name of its first team.")] = "default",
    cap: Annotated[str | None, typer.Option(help="Most it may ever spend, in USD.")] = None,
    as_json: Json = False,
) -> None:
    """Make an organisation with a team and an administrator's key, whose token is shown once.

    Needs OVERLINE_ADMIN_DATABASE_URL, or the embedded stack of this state folder.
    """
    if not name.strip() or not team.strip():
        fail("A name must not be blank.", as_json, status=2)
    cap_usd = _usd(cap, as_json)
    url = _admin_url(load_settings(), as_json)
    try:
        organisation = create_organisation(url, name, cap_usd=cap_usd)
        team_id = create_team(url, organisation, team)
        key = create_key(url, organisation, team_id, "admin", scopes=ROLES["admin"])
        note_operator(
            url,
            organisation,
            "organisation.created",
            str(organisation),
            {"after": {"name": name, "team": str(team_id), "key": str(key.key_id)}},
        )
    except StoreError as error:
        fail(str(error), as_json, status=_UNREACHABLE)
    if as_json:
        print_json(
            {
                "id": str(organisation),
                "name": name,
                "team": str(team_id),
                "key": str(key.key_id),
                "token": key.token,
            }
        )
        return
    console.print(f"{organisation} {name}\nteam {team_id}\nkey  {key.key_id}", markup=False)
    console.print(f"{key.token}\n(shown this once)", markup=False)


@org.command("list")
def list_all(as_json: Json = False) -> None:
    """List the organisations, with what each has spent."""
    url = _admin_url(load_settings(), as_json)
    try:
        found = list_organisations(url)
    except StoreError as error:
        fail(str(error), as_json, status=_UNREACHABLE)
    if as_json:
        print_json(
            {
                "organisations": [
                    {
                        "id": str(each.organisation_id),
                        "name": each.name,
                        "created_at": each.created_at.isoformat(),
                        "spent_usd": f"{each.spent_usd:f}",
                    }
                    for each in found
                ]
            }
        )
        return
    table = Table("organisation", "name", "spent", box=box.SIMPLE_HEAD, pad_edge=False)
    for each in found:
        table.add_row(str(each.organisation_id), each.name, money(each.spent_usd))
    print_table(table)


def _usd(text: str | None, as_json: bool) -> Decimal | None:
    if text is None:
        return None
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal(-1)
    if not (amount.is_finite() and 0 <= amount < _NO_CAP_FROM and amount == round(amount, 9)):
        fail(
            "--cap must be an amount in USD, such as 500: below a billion, nine decimals at most.",
            as_json,
            status=2,
        )
    return amount


def _admin_url(settings: Settings, as_json: bool) -> str:
    """Return a connection that sees every organisation; holds a secret."""
    if settings.admin_database_url is not None:
        return settings.admin_database_url.get_secret_value()
    home = Home(settings.home)
    try:
        port = read_state(home).ports.get("postgres")
        if port is None:
            fail("Set OVERLINE_ADMIN_DATABASE_URL, or start the embedded stack here.", as_json)
        return PostgresFolder(home.postgres, port, Secrets.load(home).postgres).admin_url
    except StackError as error:
        fail(str(error), as_json)
