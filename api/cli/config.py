"""`overline config`: the effective settings, where each comes from, secrets hidden."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from pydantic import SecretStr
from rich.table import Table

from api.cli.render import print_json, print_table
from settings import Settings, load_settings, state_folder

__all__ = ["config", "shown_settings"]

_PASSWORD = re.compile(r"(?<=://)([^:/@]*):[^@]*@")


def config(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show every setting with its value and where that comes from; secrets are hidden."""
    shown = shown_settings()
    if as_json:
        print_json(shown)
        return
    table = Table()
    for name in ("setting", "value", "from"):
        table.add_column(name, overflow="fold")
    for name, entry in shown.items():
        value = entry["value"]
        text = "" if value is None else ",".join(value) if isinstance(value, list) else str(value)
        table.add_row(name, text, entry["from"])
    print_table(table)


def shown_settings() -> dict[str, dict[str, Any]]:
    """Return each setting's value, fit to be shown, and its source, by variable name."""
    effective = load_settings()
    stack_file = state_folder() / "overline.env"
    sources = (
        ("environment", Settings(_env_file=None).model_fields_set),
        (".env", Settings(_env_file=".env").model_fields_set),
        (str(stack_file), effective.model_fields_set),
    )
    return {
        f"OVERLINE_{name.upper()}": {
            "value": _shown(getattr(effective, name)),
            "from": next((source for source, given in sources if name in given), "default"),
        }
        for name in Settings.model_fields
    }


def _shown(value: object) -> Any:
    if isinstance(value, SecretStr):
        secret = value.get_secret_value()
        if "://" in secret:
            return _PASSWORD.sub(r"\1:•••@", secret)
        return "•••" if secret else None
    if isinstance(value, (list, tuple)):
        return [str(part) for part in value]
    if value is None or isinstance(value, (bool, int)):
        return value
    return str(value)
