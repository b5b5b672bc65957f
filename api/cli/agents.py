"""`overline agent apply`, `list` and `show`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich import box
from rich.table import Table

from api.cli.client import ApiClient
from api.cli.render import console, fail, friendly, print_json, print_table
from settings import load_settings

__all__ = ["agents", "read_document"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

agents = typer.Typer(add_completion=False, no_args_is_help=True)


@agents.command("apply")
def apply(
    file: Annotated[Path, typer.Argument(help="The agent, in YAML or JSON.")],
    as_json: Json = False,
) -> None:
    """Make an agent, or its next version if the file says something else than the newest."""
    document = read_document(file, as_json)
    with friendly(as_json), ApiClient(load_settings()) as api:
        applied = api.post("/v1/agents", document)
    if as_json:
        print_json(applied)
        return
    what = "is new" if applied["created"] else "says this already"
    console.print(f"agent {applied['name']}@{applied['version']} {what}", markup=False)


@agents.command("list")
def list_agents(as_json: Json = False) -> None:
    """List the agents in use, each in its newest version."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        found = api.get("/v1/agents")
    if as_json:
        print_json(found)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("agent", "made", "description"):
        table.add_column(name)
    for agent in found["agents"]:
        table.add_row(
            f"{agent['name']}@{agent['version']}",
            agent["created_at"][:19].replace("T", " "),
            agent["spec"]["description"],
        )
    print_table(table)


@agents.command("show")
def show(
    agent: Annotated[str, typer.Argument(help="NAME, its newest version, or NAME@VERSION.")],
    as_json: Json = False,
) -> None:
    """Show what an agent is, in the form that `apply` reads."""
    name, _, version = agent.partition("@")
    with friendly(as_json), ApiClient(load_settings()) as api:
        found = api.get(f"/v1/agents/{name}", {"version": version or None})
    if as_json:
        print_json(found)
        return
    said = {key: value for key, value in found["spec"].items() if value not in (None, "", [])}
    text = yaml.safe_dump({"name": found["name"], **said}, sort_keys=False, allow_unicode=True)
    console.print(f"# {found['name']}@{found['version']}, made {found['created_at']}", markup=False)
    console.print(text, markup=False, end="", soft_wrap=True)


def read_document(file: Path, as_json: bool) -> Any:
    """Return what a file in YAML or JSON says, or end with what is wrong with it."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file} cannot be read ({type(error).__name__})", as_json)
    try:
        # JSON by its own reader: YAML takes `1e3` for a text.
        document = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
        json.dumps(document)
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        fail(f"{file}{where}: this is neither JSON nor YAML with JSON's values", as_json)
    return document
