"""`overline schedule`: have a task asked again and again."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from api.cli.client import ApiClient
from api.cli.render import console, fail, friendly, print_json, print_table
from settings import load_settings

__all__ = ["schedule"]

schedule = typer.Typer(no_args_is_help=True, add_completion=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@schedule.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Name, unique in the organisation.")],
    question: Annotated[
        str, typer.Argument(help="What is asked each time; `-` reads it from standard input.")
    ],
    cron: Annotated[str | None, typer.Option(help="When, such as '0 9 * * 1-5'.")] = None,
    every: Annotated[int | None, typer.Option(min=10, help="Or every so many seconds.")] = None,
    time_zone: Annotated[str, typer.Option(help="IANA time zone of --cron.")] = "UTC",
    overlap: Annotated[
        str, typer.Option(help="While the last one runs: skip, buffer_one or allow.")
    ] = "skip",
    agent: Annotated[str | None, typer.Option(help="The agent that is asked.")] = None,
    model: Annotated[str | None, typer.Option(help="Use exactly this model.")] = None,
    collection: Annotated[
        list[str] | None,
        typer.Option("--collection", "-c", help="Retrieve from this collection; repeatable."),
    ] = None,
    max_cost: Annotated[str | None, typer.Option(help="Budget of each task, in USD.")] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Begin paused.")] = False,
    as_json: Json = False,
) -> None:
    """Make a schedule; its tasks are this key's, and at its cost."""
    if (cron is None) == (every is None):
        fail("Say when: --cron or --every.", as_json, status=2)
    task: dict[str, Any] = {"input": sys.stdin.read() if question == "-" else question}
    if agent is not None:
        task["agent"] = agent
    if model is not None:
        task["model"] = model
    if collection:
        task["collections"] = collection
    if max_cost is not None:
        task["limits"] = {"max_cost_usd": max_cost}
    body = {
        "name": name,
        "cron": cron,
        "interval_seconds": every,
        "time_zone": time_zone,
        "overlap": overlap,
        "paused": paused,
        "task": task,
    }
    with friendly(as_json), ApiClient(load_settings()) as api:
        made = api.post("/v1/schedules", body)
    if as_json:
        print_json(made)
        return
    following = f", next at {made['next_at'][0]}" if made["next_at"] else ""
    console.print(f"{made['id']} ({made['state']}{following})", markup=False)


@schedule.command("list")
def list_schedules(as_json: Json = False) -> None:
    """List the schedules."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        found = api.get("/v1/schedules")
    if as_json:
        print_json(found)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("schedule", "name", "when", "overlap"):
        table.add_column(head, no_wrap=True)
    for each in found["schedules"]:
        timing = each["timing"]
        when = timing["cron"] or f"every {timing['interval_seconds']} s"
        table.add_row(each["id"], each["name"], f"{when} {timing['time_zone']}", timing["overlap"])
    print_table(table)


@schedule.command("delete")
def delete(
    schedule_id: Annotated[str, typer.Argument(help="Id of the schedule.")], as_json: Json = False
) -> None:
    """End a schedule; its tasks stay."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        gone = api.delete(f"/v1/schedules/{schedule_id}")
    if as_json:
        print_json(gone)
    else:
        console.print(f"{gone['id']} is deleted")
