"""`overline chat`: a conversation, line by line; each line is a turn, and each turn a task."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from uuid_utils.compat import uuid7

from api.cli.client import ApiClient
from api.cli.render import complaints, console, friendly, print_json
from api.cli.watch import Screen
from settings import load_settings

__all__ = ["chat"]

_OVER = frozenset({"task.succeeded", "task.failed", "task.cancelled", "turn.refused"})


def chat(
    agent: Annotated[
        str | None, typer.Option(help="Have this agent answer, NAME or NAME@VERSION.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="Go on in this session.")] = None,
    model: Annotated[str | None, typer.Option(help="Use exactly this model.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    close: Annotated[
        bool, typer.Option("--close", help="Close the session at the end of the input.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every turn as one line of JSON.")
    ] = False,
) -> None:
    """Read lines from standard input and answer each; an empty line says nothing."""
    failed = False
    with friendly(as_json), ApiClient(load_settings()) as api:
        if session is None:
            asked = {"agent": agent, "model": model, "system": system}
            body = {name: value for name, value in asked.items() if value is not None}
            session = str(api.post("/v1/sessions", body, {"Idempotency-Key": str(uuid7())})["id"])
        else:
            api.get(f"/v1/sessions/{session}")
        if not as_json:
            complaints.print(
                f"[dim]session {session} · go on with --session, end with Ctrl-D[/dim]"
            )
        while (line := _read(as_json)) is not None:
            if line.strip():
                failed |= not _turn(api, session, line, as_json)
        if close:
            api.delete(f"/v1/sessions/{session}")
    if failed:
        raise typer.Exit(1)


def _read(as_json: bool) -> str | None:
    """Return the next line; None at the end of the input."""
    if sys.stdin.isatty() and not as_json:
        complaints.print("[bold]> [/bold]", end="")
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _turn(api: ApiClient, session: str, line: str, as_json: bool) -> bool:
    """Say a line and show its turn to the end; return whether it was answered."""
    # A key of our own makes the request safe to repeat when the answer gets lost.
    headers = {"Idempotency-Key": str(uuid7())}
    said: dict[str, Any] = api.post(f"/v1/sessions/{session}/messages", {"content": line}, headers)
    screen = Screen()
    for event in api.session_events(session, first=said["number"]):
        if not as_json and event.type != "step.started":
            screen.show(event)
        if event.turn != said["number"] or event.type in _OVER:
            break
    screen.end()
    turns = api.get(f"/v1/sessions/{session}/messages", {"cursor": said["number"] - 1, "limit": 1})
    (turn,) = turns["messages"]
    if as_json:
        print_json(turn)
    elif turn["error"] is not None:
        error = turn["error"]
        console.print(f"{turn['state']}: {error['message']} ({error['code']})", markup=False)
    return bool(turn["state"] == "answered")
