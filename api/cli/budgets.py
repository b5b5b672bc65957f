"""`overline budget`: what may be spent, and what is left of it."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from api.cli.client import ApiClient
from api.cli.render import console, friendly, print_json, print_table
from settings import load_settings

__all__ = ["budget"]

budget = typer.Typer(no_args_is_help=True, add_completion=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@budget.command("set")
def set_budget(
    scope: Annotated[str, typer.Argument(help="organisation, team, key, user, tag, agent, task.")],
    cap_usd: Annotated[str, typer.Argument(help="How much, in USD.")],
    of: Annotated[
        str | None,
        typer.Option(help="Which: an id, a user, name=value, an agent; * for each by itself."),
    ] = None,
    period: Annotated[str, typer.Option(help="day, week, month or total.")] = "month",
    time_zone: Annotated[str, typer.Option(help="IANA time zone in which periods begin.")] = "UTC",
    soft: Annotated[bool, typer.Option("--soft", help="Warn instead of refusing.")] = False,
    webhook: Annotated[
        str | None, typer.Option(help="Who is told when a soft one is passed: an address.")
    ] = None,
    webhook_secret: Annotated[
        str | None, typer.Option(help="Name of the operator's secret that signs it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set a budget, or give the one there is another cap."""
    body: dict[str, Any] = {
        "scope": scope,
        "subject": of,
        "period": period,
        "time_zone": time_zone,
        "cap_usd": cap_usd,
        "hard": not soft,
    }
    if webhook is not None:
        body["webhook"] = {"url": webhook, "secret": webhook_secret}
    with friendly(as_json), ApiClient(load_settings()) as api:
        made = api.post("/v1/budgets", body)
    if as_json:
        print_json(made)
    else:
        _print(made["budgets"])


@budget.command("list")
def list_budgets(as_json: Json = False) -> None:
    """List the budgets, with what is spent, held and left."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        found = api.get("/v1/budgets")
    if as_json:
        print_json(found)
    else:
        _print(found["budgets"])


@budget.command("show")
def show(
    budget_id: Annotated[str, typer.Argument(help="Id of the budget.")], as_json: Json = False
) -> None:
    """Say what is spent, held and left of a budget, and by whom."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        found = api.get(f"/v1/budgets/{budget_id}")
    if as_json:
        print_json(found)
        return
    _print(found["budgets"])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("key", "user", "calls", "spent", "held"):
        table.add_column(head, no_wrap=True)
    for each in found["by"]:
        table.add_row(
            each["key_id"],
            each["user"] or "",
            str(each["calls"]),
            _usd(each["spent_usd"]),
            _usd(each["held_usd"]),
        )
    print_table(table)


@budget.command("remove")
def remove(
    budget_id: Annotated[str, typer.Argument(help="Id of the budget.")], as_json: Json = False
) -> None:
    """Lift a budget."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        gone = api.delete(f"/v1/budgets/{budget_id}")
    if as_json:
        print_json(gone)
    else:
        console.print(f"{gone['id']} is removed", markup=False)


def _usd(amount: str) -> str:
    return f"${Decimal(amount).normalize():f}"


def _print(budgets: list[dict[str, Any]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("budget", "of", "window", "kind", "cap", "spent", "held", "left"):
        table.add_column(head, no_wrap=True)
    for each in budgets:
        cap, left = each["cap_usd"], each["left_usd"]
        table.add_row(
            each["id"],
            f"{each['scope']} {each['subject']}",
            each["window"],
            "hard" if each["hard"] else "soft",
            "none" if cap is None else _usd(cap),
            _usd(each["spent_usd"]),
            _usd(each["held_usd"]),
            "" if left is None else _usd(left),
        )
    print_table(table)
