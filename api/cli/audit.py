"""`overline audit`: who did what, and whether the log was tampered with."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from api.cli.client import ApiClient
from api.cli.render import console, friendly, print_json, print_table
from settings import load_settings

__all__ = ["audit"]

audit = typer.Typer(no_args_is_help=True, add_completion=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
_BROKEN = 1


@audit.command("list")
def list_entries(
    actor: Annotated[str | None, typer.Option(help="Only what this one did.")] = None,
    action: Annotated[str | None, typer.Option(help="Only this; `key.` for all of keys.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only what was done to this.")] = None,
    since: Annotated[str | None, typer.Option(help="From then on, RFC 3339 with a zone.")] = None,
    until: Annotated[str | None, typer.Option(help="Before then, RFC 3339 with a zone.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="At most so many.")] = 50,
    cursor: Annotated[int | None, typer.Option(help="Only those before this number.")] = None,
    as_json: Json = False,
) -> None:
    """List entries, newest first."""
    asked = {
        "actor": actor,
        "action": action,
        "subject": subject,
        "since": since,
        "until": until,
        "limit": limit,
        "cursor": cursor,
    }
    with friendly(as_json), ApiClient(load_settings()) as api:
        found = api.get("/v1/audit", asked)
    if as_json:
        print_json(found)
        return
    heads = ("number", "at", "actor", "action", "subject", "detail")
    table = Table(*heads, box=box.SIMPLE_HEAD, pad_edge=False)
    for entry in found["entries"]:
        detail = json.dumps(entry["detail"], ensure_ascii=False)
        cells = (entry["at"], entry["actor"], entry["action"], entry["subject"], detail)
        table.add_row(str(entry["number"]), *cells)
    print_table(table)


@audit.command("verify")
def verify(as_json: Json = False) -> None:
    """Compute the hash chain anew; ends with 1 if an entry does not fit."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        verdict = api.get("/v1/audit/verify")
    if as_json:
        print_json(verdict)
    elif verdict["intact"]:
        console.print(f"{verdict['entries']} entries, each fits the one before it")
    else:
        console.print(f"broken from entry {verdict['first_broken']} on")
    if not verdict["intact"]:
        raise typer.Exit(_BROKEN)
