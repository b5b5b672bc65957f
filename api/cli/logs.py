"""`overline logs`: what the parts of the embedded stack wrote."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from api.cli.render import fail, print_json
from deploy.local.home import Home
from settings import state_folder

__all__ = ["logs"]


def logs(
    part: Annotated[
        str | None,
        typer.Argument(help="postgres, temporal, triton, worker-1, api …; default: all."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Last lines to show.")] = 100,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line: part and line.")
    ] = False,
) -> None:
    """Show the last lines of the logs, and with -f what is added to them."""
    folder = Home.open(state_folder()).logs
    known = {path.stem: path for path in sorted(folder.glob("*.log"))}
    if part is not None and part not in known:
        there = ", ".join(known) or "none yet: nothing was ever started here"
        fail(f"There is no log of {part!r} in {folder}. There are: {there}.", as_json)
    chosen = known if part is None else {part: known[part]}
    ends: dict[str, int] = {}
    for name, path in chosen.items():
        size = path.stat().st_size
        for line in _last(path, lines):
            _show(name, line, as_json=as_json, prefixed=part is None)
        ends[name] = size
    if follow:
        for name, line in _added(folder, part, ends):
            _show(name, line, as_json=as_json, prefixed=part is None)


def _last(path: Path, count: int) -> list[str]:
    with path.open(errors="replace") as file:
        return [line.rstrip("\n") for line in deque(file, maxlen=count)]


def _added(folder: Path, part: str | None, ends: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield lines as they are written; a part that starts later joins in."""
    while True:
        for path in sorted(folder.glob("*.log")):
            name = path.stem
            if part is not None and name != part:
                continue
            start = ends.get(name, 0)
            with path.open("rb") as file:
                file.seek(start)
                whole, newline, _ = file.read().rpartition(b"\n")
            if newline:
                ends[name] = start + len(whole) + 1
                for line in whole.decode(errors="replace").split("\n"):
                    yield name, line
        time.sleep(0.2)


def _show(name: str, line: str, *, as_json: bool, prefixed: bool) -> None:
    if as_json:
        print_json({"part": name, "line": line})
    else:
        sys.stdout.write(f"{name:<10} {line}\n" if prefixed else f"{line}\n")
    sys.stdout.flush()
