"""`overline map`: a task for each line of a file. `overline tree`: a task with all below it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.tree import Tree
from uuid_utils.compat import uuid7

from api.cli.client import ApiClient
from api.cli.render import can_write, complaints, console, fail, friendly, money, print_json
from settings import load_settings

__all__ = ["map_inputs", "tree"]

_POLL_S = 0.5
_MOST_DEEP = 8

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def map_inputs(
    file: Annotated[
        Path,
        typer.Argument(
            help="A line an input: a JSON text, a JSON array of messages, or an object with "
            "`input` or `messages`.",
            metavar="FILE.jsonl",
        ),
    ],
    agent: Annotated[
        str | None, typer.Option(help="Agent that answers each, NAME or NAME@VERSION.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Use exactly this model.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=200, help="How many at a time, at most.")
    ] = 16,
    stop: Annotated[
        bool, typer.Option("--stop", help="Begin no further input when one has failed.")
    ] = False,
    max_cost: Annotated[
        str | None, typer.Option(help="Budget of all inputs together, in USD.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the results into this file.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait.")] = False,
    as_json: Json = False,
) -> None:
    """Answer every line of a file; results are JSON lines in the order of the inputs."""
    can_write(output, as_json=as_json)
    body: dict[str, Any] = {
        "inputs": list(_inputs(file, as_json)),
        "concurrency": concurrency,
        "on_error": "stop" if stop else "continue",
    }
    said = {"agent": agent, "model": model, "system": system}
    body |= {name: value for name, value in said.items() if value is not None}
    if max_cost is not None:
        body["whole"] = {"max_cost_usd": max_cost}
    with friendly(as_json), ApiClient(load_settings()) as api:
        accepted = api.post("/v1/maps", body, {"Idempotency-Key": str(uuid7())})
        if not as_json:
            complaints.print(f"map {accepted['id']}  {accepted['links']['web_ui']}", markup=False)
        if detach:
            if as_json:
                print_json(accepted)
            else:
                console.print(accepted["id"], markup=False)
            return
        done = _wait(api, accepted["id"], quiet=as_json)
        results = _results(api, accepted["id"])
        if output is not None:
            with output.open("w", encoding="utf-8") as file_out:
                _write(results, file_out)
        elif not as_json:
            _write(results, sys.stdout)
        if as_json:
            print_json({"map": done} | ({} if output else {"results": list(results)}))
        else:
            _tell(done)
    if done["status"] != "succeeded" or done["progress"]["failed"]:
        raise typer.Exit(1)


def tree(
    task: Annotated[str, typer.Argument(help="Task id.")],
    as_json: Json = False,
) -> None:
    """Show a task with the tasks it started, all the way down, and what each cost."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        read = api.get(f"/v1/tasks/{task}")
        below = _below(api, read, _MOST_DEEP)
    if as_json:
        print_json(below)
        return
    shown = Tree(_line(below))
    _grow(shown, below["children"])
    console.print(shown)
    whole = read["tree"]
    console.print(f"{whole['tasks']} task(s), {whole['tokens']} tokens, {money(whole['cost_usd'])}")


def _inputs(file: Path, as_json: bool) -> Iterator[Any]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        fail(f"There is no readable file {str(file)!r}.", as_json)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            read = json.loads(line)
        except ValueError:
            fail(f"Line {number} is not JSON.", as_json)
        if isinstance(read, dict):
            read = read.get("input") or read.get("messages")
        if not isinstance(read, str | list):
            fail(f"Line {number} has neither a text nor messages.", as_json)
        yield read


def _wait(api: ApiClient, map_id: str, *, quiet: bool) -> dict[str, Any]:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=complaints,
        disable=quiet,
    )
    with bar:
        line = bar.add_task("map")
        while True:
            read: dict[str, Any] = api.get(f"/v1/tasks/{map_id}")
            now = read["progress"]
            failed = f", {now['failed']} failed" if now["failed"] else ""
            bar.update(
                line,
                total=now["total"],
                completed=now["done"] + now["failed"],
                description=f"{now['running']} running{failed}",
            )
            if read["finished_at"] is not None:
                return read
            time.sleep(_POLL_S)


def _results(api: ApiClient, map_id: str) -> Iterator[dict[str, Any]]:
    cursor: int | None = 0
    while cursor is not None:
        page = api.get(f"/v1/maps/{map_id}/results", {"limit": 1000, "cursor": cursor})
        yield from page["results"]
        cursor = page["next_cursor"]


def _write(results: Iterator[dict[str, Any]], out: TextIO) -> None:
    for result in results:
        out.write(json.dumps(result, ensure_ascii=False) + "\n")


def _tell(done: dict[str, Any]) -> None:
    now = done["progress"]
    complaints.print(
        f"{done['status']}: {now['done']} answered, {now['failed']} failed, {now['skipped']} "
        f"skipped, of {now['total']}; {money(done['tree']['cost_usd'])}"
    )
    if done["error"]:
        complaints.print(f"{done['error']['message']} ({done['error']['code']})", markup=False)


def _below(api: ApiClient, task: dict[str, Any], levels: int) -> dict[str, Any]:
    """Return a task and its children as one nested document."""
    kept = {name: task[name] for name in ("id", "kind", "agent", "status", "cost_usd", "preview")}
    children = [
        _below(api, api.get(f"/v1/tasks/{child['id']}"), levels - 1)
        for child in (task["children"] if levels else ())
    ]
    return kept | {"children": children}


def _line(task: dict[str, Any]) -> str:
    what = task["agent"] or task["kind"]
    return (
        f"{task['id']}  [bold]{escape(what)}[/bold]  {task['status']}  {money(task['cost_usd'])}  "
        f"[dim]{escape(task['preview'][:60])}[/dim]"
    )


def _grow(branch: Tree, children: list[dict[str, Any]]) -> None:
    for child in children:
        _grow(branch.add(_line(child)), child["children"])
