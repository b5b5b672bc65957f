"""`overline team` and `overline key`: who may call, and what they may do."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from api.cli.client import ApiClient
from api.cli.render import complaints, console, fail, friendly, print_json, print_table
from settings import load_settings

__all__ = ["key", "team"]

team = typer.Typer(no_args_is_help=True, add_completion=False)
key = typer.Typer(no_args_is_help=True, add_completion=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
KeyId = Annotated[str, typer.Argument(help="Id of the key.")]
Models = Annotated[
    list[str] | None, typer.Option("--model", help="May name this model; repeatable.")
]
Routes = Annotated[
    list[str] | None, typer.Option("--route", help="May name this route; repeatable.")
]
Endpoints = Annotated[
    list[str] | None, typer.Option("--endpoint", help="May ask this path; repeatable.")
]
Addresses = Annotated[
    list[str] | None, typer.Option("--address", help="May ask from this range; repeatable.")
]
Tools = Annotated[
    list[str] | None, typer.Option("--tool", help="Its tasks may use this tool; repeatable.")
]
Expires = Annotated[
    str | None, typer.Option("--expires-at", help="Good until then, RFC 3339 with a zone.")
]
Role = Annotated[str | None, typer.Option(help="admin, member or reader.")]
Scopes = Annotated[
    list[str] | None, typer.Option("--scope", help="Instead of a role: this scope; repeatable.")
]

#: Restrictions by the name of their option, for `--any`.
_LISTS = ("models", "routes", "endpoints", "addresses", "tools")


@team.command("create")
def create_team(
    name: Annotated[str, typer.Argument(help="Name, unique in the organisation.")],
    as_json: Json = False,
) -> None:
    """Make a team."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        made = api.post("/v1/teams", {"name": name})
    _say(made, f"{made['id']} {made['name']}", as_json)


@team.command("list")
def list_teams(as_json: Json = False) -> None:
    """List the teams."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        found = api.get("/v1/teams")
    if as_json:
        print_json(found)
        return
    table = Table("team", "name", "keys", box=box.SIMPLE_HEAD, pad_edge=False)
    for each in found["teams"]:
        table.add_row(each["id"], each["name"], str(each["keys"]))
    print_table(table)


@team.command("rename")
def rename_team(
    team_id: Annotated[str, typer.Argument(help="Id of the team.")],
    name: Annotated[str, typer.Argument(help="Its new name.")],
    as_json: Json = False,
) -> None:
    """Give a team another name."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        changed = api.patch(f"/v1/teams/{team_id}", {"name": name})
    _say(changed, f"{changed['id']} {changed['name']}", as_json)


@key.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="What it is called.")],
    team_of: Annotated[str, typer.Option("--team", help="Id of its team.")],
    role: Role = None,
    scopes: Scopes = None,
    service_account: Annotated[
        bool, typer.Option("--service-account", help="It stands for a program and no person.")
    ] = False,
    models: Models = None,
    routes: Routes = None,
    endpoints: Endpoints = None,
    addresses: Addresses = None,
    tools: Tools = None,
    expires_at: Expires = None,
    as_json: Json = False,
) -> None:
    """Make a key, and print its token for the only time."""
    body: dict[str, Any] = {
        "team": team_of,
        "name": name,
        "role": role,
        "scopes": scopes or None,
        "service_account": service_account,
        "models": models or None,
        "routes": routes or None,
        "endpoints": endpoints or None,
        "addresses": addresses or None,
        "tools": tools or None,
        "expires_at": expires_at,
    }
    with friendly(as_json), ApiClient(load_settings()) as api:
        made = api.post("/v1/keys", body)
    _say_token(made, as_json)


@key.command("list")
def list_keys(
    team_of: Annotated[str | None, typer.Option("--team", help="Only this team's.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most so many.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Only those after this key's id.")] = None,
    as_json: Json = False,
) -> None:
    """List keys, newest first."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        found = api.get("/v1/keys", {"team": team_of, "limit": limit, "cursor": cursor})
    if as_json:
        print_json(found)
        return
    heads = ("key", "name", "may", "state", "restricted in", "last used")
    table = Table(*heads, box=box.SIMPLE_HEAD, pad_edge=False)
    for each in found["keys"]:
        lists = ", ".join(name for name in _LISTS if each[name] is not None)
        table.add_row(
            each["id"],
            each["name"],
            each["role"] or " ".join(each["scopes"]),
            _state(each),
            lists,
            each["last_used_at"] or "",
        )
    print_table(table)
    if found["next_cursor"]:
        complaints.print(f"more: --cursor {found['next_cursor']}", markup=False)


@key.command("show")
def show_key(key_id: KeyId, as_json: Json = False) -> None:
    """Show a key: what it may do, and when it was last used."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        found = api.get(f"/v1/keys/{key_id}")
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        if value is not None:
            shown = " ".join(value) if isinstance(value, list) else value
            console.print(f"{name:16} {shown}", markup=False)


@key.command("change")
def change_key(
    key_id: KeyId,
    name: Annotated[str | None, typer.Option(help="What it is called.")] = None,
    role: Role = None,
    scopes: Scopes = None,
    models: Models = None,
    routes: Routes = None,
    endpoints: Endpoints = None,
    addresses: Addresses = None,
    tools: Tools = None,
    expires_at: Expires = None,
    lift: Annotated[
        list[str] | None,
        typer.Option(
            "--any",
            help="Lift a restriction: models, routes, endpoints, addresses or tools; repeatable.",
        ),
    ] = None,
    none: Annotated[
        list[str] | None,
        typer.Option("--none", help="Allow nothing of models, routes, ... or tools; repeatable."),
    ] = None,
    never_expires: Annotated[
        bool, typer.Option("--never-expires", help="Lift the expiry.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Change a key; every process heeds it from the next request on."""
    said: dict[str, Any] = {
        "name": name,
        "role": role,
        "scopes": scopes or None,
        "models": models or None,
        "routes": routes or None,
        "endpoints": endpoints or None,
        "addresses": addresses or None,
        "tools": tools or None,
        "expires_at": expires_at,
    }
    body = {field: value for field, value in said.items() if value is not None}
    for field in (*(lift or ()), *(none or ())):
        if field not in _LISTS:
            fail(f"{field} is none of {', '.join(_LISTS)}.", as_json, status=2)
    body |= dict.fromkeys(lift or ()) | {field: [] for field in none or ()}
    if never_expires:
        body["expires_at"] = None
    with friendly(as_json), ApiClient(load_settings()) as api:
        changed = api.patch(f"/v1/keys/{key_id}", body)
    _say(changed, f"{changed['id']} {_state(changed)}", as_json)


@key.command("disable")
def disable_key(key_id: KeyId, as_json: Json = False) -> None:
    """Switch a key off, at once and everywhere."""
    _switch(key_id, "disable", as_json)


@key.command("enable")
def enable_key(key_id: KeyId, as_json: Json = False) -> None:
    """Switch a key on again."""
    _switch(key_id, "enable", as_json)


@key.command("rotate")
def rotate_key(
    key_id: KeyId,
    overlap: Annotated[
        int, typer.Option(min=0, help="Seconds for which the old secret is good, too.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Give a key a new secret, and print its token for the only time."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        made = api.post(f"/v1/keys/{key_id}/rotate", {"overlap_seconds": overlap})
    _say_token(made, as_json)


def _switch(key_id: str, way: str, as_json: bool) -> None:
    with friendly(as_json), ApiClient(load_settings()) as api:
        changed = api.post(f"/v1/keys/{key_id}/{way}")
    _say(changed, f"{changed['id']} {_state(changed)}", as_json)


def _state(shown: dict[str, Any]) -> str:
    if shown["disabled"]:
        return "disabled"
    return f"until {shown['expires_at']}" if shown["expires_at"] else "enabled"


def _say(document: Any, words: str, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        console.print(words, markup=False)


def _say_token(made: dict[str, Any], as_json: bool) -> None:
    _say(made, f"{made['id']} {made['name']}\n{made['token']}\n(shown this once)", as_json)
