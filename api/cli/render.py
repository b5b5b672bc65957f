"""How the command line shows things: tables for people, JSON for programs, errors for both."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from api.cli.client import ApiRefusal, ApiUnreachable

__all__ = [
    "called",
    "can_write",
    "complaints",
    "console",
    "fail",
    "friendly",
    "money",
    "print_json",
    "print_table",
    "seconds",
    "steps_table",
]

# Into a file or a pipe there is no width to keep to; 80 would cut every table.
_WIDTH = None if sys.stdout.isatty() else 160

console = Console(highlight=False, soft_wrap=True, width=_WIDTH)
complaints = Console(stderr=True, highlight=False, soft_wrap=True)

REFUSED = 1
UNREACHABLE = 3


def print_json(document: Any) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")


def print_table(table: Table) -> None:
    """Print a table whose cells are shown as they are: a name like `[/x]` is no markup."""
    console.print(table, markup=False)


def fail(message: str, as_json: bool, *, status: int = REFUSED) -> NoReturn:
    """End the command with a message.

    Raises:
        typer.Exit: Always.
    """
    if as_json:
        print_json({"error": {"detail": message}})
    else:
        complaints.print(message, markup=False)
    raise typer.Exit(status)


def can_write(*paths: Path | None, as_json: bool) -> None:
    """End the command where a file could not be written later: before anything is begun for it.

    Raises:
        typer.Exit: One cannot be.
    """
    for path in paths:
        if path is not None and (
            path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)
        ):
            fail(f"{path} cannot be written: no such folder, or not yours to write.", as_json)


@contextlib.contextmanager
def friendly(as_json: bool) -> Iterator[None]:
    """Turn refusals of the API into a message (or a problem document) and an exit status.

    The status is 1 for a refusal and 3 when the API does not answer.
    """
    try:
        yield
    except ApiUnreachable as exc:
        fail(str(exc), as_json, status=UNREACHABLE)
    except ApiRefusal as exc:
        if as_json:
            print_json({"error": exc.problem})
        else:
            _explain(exc)
        raise typer.Exit(REFUSED) from None


def _explain(refusal: ApiRefusal) -> None:
    problem = refusal.problem
    complaints.print(f"[red]{problem.get('title', 'Refused')}[/red] ({problem.get('code', '')})")
    complaints.print(str(problem.get("detail", "")), markup=False)
    for error in problem.get("errors") or ():
        where = f"{error.get('in')} {error.get('pointer') or '(whole)'}"
        complaints.print(f"  {where}: {error.get('detail')}", markup=False)
    if problem.get("request_id"):
        complaints.print(f"[dim]request {problem['request_id']}[/dim]")


def money(amount: Any) -> str:
    """Return an amount in USD with as many digits as it needs, at least two decimals."""
    if amount is None:
        return ""
    value = Decimal(str(amount)).normalize()
    text = f"{value:f}"
    whole, _, fraction = text.partition(".")
    return f"${whole}.{fraction.ljust(2, '0')}"


def seconds(milliseconds: Any) -> str:
    """Return a duration given in milliseconds, in seconds."""
    return "" if milliseconds is None else f"{float(milliseconds) / 1000:.2f} s"


def steps_table(task: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of a task's steps: what each did, on which model, at what price."""
    table = Table(
        title=f"task {task['id']} · {task['status']}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_footer=True,
    )
    table.add_column("step", justify="right")
    table.add_column("did", footer="all", overflow="fold")
    table.add_column("model", no_wrap=True)
    table.add_column("prompt", justify="right", footer=str(task.get("prompt_tokens", "")))
    table.add_column("cached", justify="right", footer=str(task.get("cached_tokens", "")))
    table.add_column("out", justify="right", footer=str(task.get("completion_tokens", "")))
    table.add_column("cost", justify="right", no_wrap=True, footer=money(task.get("cost_usd")))
    table.add_column("time", justify="right", no_wrap=True)
    last = len(steps)
    for step in steps:
        table.add_row(
            str(step["step"]),
            _did(step, last=step["step"] == last),
            step.get("model") or "",
            str(step.get("prompt_tokens", "")),
            str(step.get("cached_tokens", "")),
            str(step.get("completion_tokens", "")),
            money(step.get("cost_usd")),
            seconds(step.get("duration_ms")),
        )
    return table


def called(tool: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """Return a tool call, or several, as one would write it, arguments cut short."""
    if not isinstance(tool, Mapping):
        return ", ".join(map(called, tool))
    arguments = ", ".join(str(value) for value in (tool.get("arguments") or {}).values())
    return f"{tool.get('name', 'tool')}({' '.join(arguments.split())[:40]})"


def _did(step: Mapping[str, Any], *, last: bool) -> str:
    status = str(step.get("status", ""))
    if step.get("chosen_calls"):
        did = called(step["chosen_calls"])
    elif status in ("succeeded", "cached"):
        did = "answer" if last else "no tool needed"
    else:
        did = status
    return f"{did}, from the cache" if status == "cached" else did
