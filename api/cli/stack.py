"""`overline up`, `down` and `status`: the embedded stack from outside."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from api.cli.progress import StartDisplay, ready_panel
from api.cli.render import complaints, console, print_json
from deploy.local.errors import PartFailed, StackError
from deploy.local.home import Home, StackLock
from deploy.local.plan import ALL_PARTS
from deploy.local.report import Event, Report, Tee
from deploy.local.state import StackState, read_state, stop_stack
from settings import state_folder

__all__ = ["down", "status", "up"]

NOT_RUNNING = 3
_NOT_READY = 1

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def up(
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave the stack running and return.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(help=f"Start only these parts, by comma, of {', '.join(ALL_PARTS)}."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Start Postgres, Temporal, Triton, the workers and the API, and keep them up.

    Parts that OVERLINE_DATABASE_URL, OVERLINE_TEMPORAL_ADDRESS or OVERLINE_TRITON_URLS point at
    are used as they are and not started here.
    """
    with told(as_json):
        parts = _chosen(only)
        home = Home.open(state_folder())
        if detach:
            summary = _start_detached(home, parts, StartDisplay(quiet=as_json))
            _show_ready(summary, as_json=as_json, detached=True)
            return
        # What runs a stack takes a second to import; `down`, `status` and `--detach` run none.
        from deploy.local.stack import Stack
        from deploy.local.supervise import run_until_signalled

        display = StartDisplay(quiet=as_json)

        def on_ready(event: Event) -> None:
            if event.part == "stack" and event.state == "ready":
                _show_ready(event.data, as_json=as_json, detached=False)

        report: Report = Tee(display, on_ready)
        try:
            asyncio.run(run_until_signalled(Stack(home, report, only=parts)))
        finally:
            display.close()


def down(as_json: Json = False) -> None:
    """Stop the embedded stack and wait until it is gone. Its state stays."""
    with told(as_json):
        home = Home.open(state_folder())
        ran = stop_stack(home)
    if as_json:
        print_json({"stopped": ran, "home": str(home.folder)})
    else:
        console.print("stopped" if ran else f"nothing runs in {home.folder}", markup=False)


def status(as_json: Json = False) -> None:
    """Show what runs. Exits 0 when all is ready, 1 when a part is not, 3 when nothing runs."""
    home = Home.open(state_folder())
    state = read_state(home)
    if as_json:
        print_json(
            {
                "running": state.running,
                "ready": state.all_ready,
                "state": state.state,
                "home": str(home.folder),
                "supervisor_pid": state.supervisor.pid
                if state.running and state.supervisor
                else None,
                "parts": state.parts,
                "urls": state.urls,
                "ports": state.ports,
                "versions": state.versions,
            }
        )
    elif not state.running:
        console.print(f"Nothing runs in {home.folder}. Start it with `overline up`.", markup=False)
    else:
        _show_status(home, state)
    if not state.running:
        raise typer.Exit(NOT_RUNNING)
    if not state.all_ready:
        raise typer.Exit(_NOT_READY)


@contextmanager
def told(as_json: bool) -> Iterator[None]:
    """Turn errors of the stack into a message, or JSON, and an exit status."""
    try:
        yield
    except StackError as error:
        if as_json:
            found: dict[str, Any] = {"code": error.code, "detail": str(error)}
            if isinstance(error, PartFailed):
                found["part"] = error.part
            print_json({"error": found})
        else:
            complaints.print(f"[red]✗[/red] {_escaped(str(error))}")
        raise typer.Exit(error.exit_code) from None


def _chosen(only: str | None) -> frozenset[str]:
    parts = frozenset(ALL_PARTS if only is None else filter(None, map(str.strip, only.split(","))))
    if unknown := parts - set(ALL_PARTS):
        raise StackError(
            f"There is no part {', '.join(sorted(unknown))}. There are: {', '.join(ALL_PARTS)}."
        )
    return parts


def _start_detached(home: Home, parts: frozenset[str], display: StartDisplay) -> dict[str, Any]:
    """Start a supervisor of its own session and follow its events until it is up."""
    StackLock(home).check()
    handle, name = tempfile.mkstemp(dir=home.folder, prefix=".events-")
    os.close(handle)
    events = Path(name)
    log = os.open(home.log("supervisor"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "deploy.local.supervise", str(home.folder)),
                *("--events", str(events), "--only", ",".join(sorted(parts))),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    finally:
        os.close(log)
    try:
        return _follow(process, events, display, home)
    except KeyboardInterrupt:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    finally:
        display.close()
        events.unlink(missing_ok=True)


def _follow(
    process: subprocess.Popen[bytes], events: Path, display: StartDisplay, home: Home
) -> dict[str, Any]:
    with events.open() as lines:
        half = ""
        while True:
            ended = process.poll() is not None  # asked first: what it wrote is read after
            while line := lines.readline():
                half += line
                if not half.endswith("\n"):
                    break
                event, half = Event(**json.loads(half)), ""
                if event.part == "stack" and event.state == "ready":
                    return event.data
                if event.part == "stack" and event.state == "failed":
                    process.wait()
                    failure = StackError(event.text)
                    failure.code = event.data.get("code", failure.code)
                    failure.exit_code = event.data.get("exit", failure.exit_code)
                    raise failure
                display(event)
            if ended:
                raise PartFailed(
                    "supervisor", f"ended with {process.returncode}", home.log("supervisor")
                )
            time.sleep(0.05)


def _show_ready(summary: dict[str, Any], *, as_json: bool, detached: bool) -> None:
    if as_json:
        print_json(summary)
        sys.stdout.flush()
    else:
        console.print(ready_panel(summary, detached=detached))


def _show_status(home: Home, state: StackState) -> None:
    table = Table(title=f"{home.folder} · {state.state}", title_justify="left")
    for name in ("part", "state", "pid", "restarts", "for", ""):
        table.add_column(name, justify="right" if name in ("pid", "restarts", "for") else "left")
    for name, part in state.parts.items():
        table.add_row(
            name,
            part["state"],
            str(part["pid"] or ""),
            str(part["restarts"] or ""),
            _ago(time.time() - part["since"]),
            _escaped(part["text"]),
        )
    console.print(table)
    for name in ("api", "temporal_ui"):
        if name in state.urls:
            console.print(f"{name:<12} {state.urls[name]}", markup=False)


def _ago(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")
