"""`overline limit`: how many requests, tokens and calls at once."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from api.cli.client import ApiClient
from api.cli.render import console, fail, friendly, print_json, print_table
from settings import load_settings

__all__ = ["limit"]

limit = typer.Typer(no_args_is_help=True, add_completion=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
_CAPS = {
    "requests_per_minute": "requests/min",
    "input_tokens_per_minute": "input/min",
    "output_tokens_per_minute": "output/min",
    "tokens_per_minute": "tokens/min",
    "concurrent_calls": "at once",
}


@limit.command("set")
def set_limit(
    key: Annotated[str | None, typer.Option(help="Of the key with this id.")] = None,
    team: Annotated[str | None, typer.Option(help="Of the team with this id.")] = None,
    model: Annotated[
        str | None, typer.Option(help="For this model or route, or a name that ends in *.")
    ] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Requests a minute.")] = None,
    input_tokens: Annotated[int | None, typer.Option(min=1, help="Prompt tokens a minute.")] = None,
    output_tokens: Annotated[int | None, typer.Option(min=1, help="Made tokens a minute.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Both together, a minute.")] = None,
    concurrent: Annotated[int | None, typer.Option(min=1, help="Calls at once.")] = None,
    as_json: Json = False,
) -> None:
    """Limit a key, a team, or else the whole organisation; replaces what was set before."""
    if key is not None and team is not None:
        fail("Say --key or --team, not both.", as_json, status=2)
    body: dict[str, Any] = {
        "scope": "key" if key else "team" if team else "organisation",
        "scope_id": key or team,
        "model": model,
        "requests_per_minute": requests,
        "input_tokens_per_minute": input_tokens,
        "output_tokens_per_minute": output_tokens,
        "tokens_per_minute": tokens,
        "concurrent_calls": concurrent,
    }
    with friendly(as_json), ApiClient(load_settings()) as api:
        made = api.post("/v1/limits", body)
    if as_json:
        print_json(made)
    else:
        console.print(f"{made['id']} is set", markup=False)


@limit.command("list")
def list_limits(as_json: Json = False) -> None:
    """List the limits, with what is used of each."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        found = api.get("/v1/limits")
    if as_json:
        print_json(found)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("limit", "of", "model", *_CAPS.values(), "open"):
        table.add_column(head, no_wrap=True)
    for each in found["limits"]:
        caps = ["" if each[name] is None else f"{each[name]:,}" for name in _CAPS]
        whose = each["scope"]
        if whose != "organisation":
            whose += f" {each['scope_id']}"
        table.add_row(each["id"], whose, each["model"] or "", *caps, str(each["open_calls"]))
    print_table(table)


@limit.command("remove")
def remove(
    limit_id: Annotated[str, typer.Argument(help="Id of the limit.")], as_json: Json = False
) -> None:
    """Lift a limit."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        gone = api.delete(f"/v1/limits/{limit_id}")
    if as_json:
        print_json(gone)
    else:
        console.print(f"{gone['id']} is removed", markup=False)
