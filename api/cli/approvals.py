"""`overline approve` and `refuse`: a person's word about a tool call."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from api.cli.client import ApiClient
from api.cli.render import console, fail, friendly, print_json
from settings import load_settings

__all__ = ["approve", "refuse"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Task = Annotated[str, typer.Argument(help="Task id.")]
Call = Annotated[
    str | None, typer.Argument(help="Call id; by default the task's one call that waits.")
]


def approve(
    task: Task,
    call: Call = None,
    arguments: Annotated[
        str | None, typer.Option(help="JSON object: make the call with these arguments instead.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Let a tool call be made that waits for a person."""
    body: dict[str, Any] = {"decision": "approve"}
    if arguments is not None:
        try:
            body["arguments"] = json.loads(arguments)
        except ValueError:
            fail("--arguments takes a JSON object", as_json)
    _decide(task, call, body, as_json)


def refuse(
    task: Task,
    call: Call = None,
    reason: Annotated[str | None, typer.Option(help="Why, for the model to read.")] = None,
    as_json: Json = False,
) -> None:
    """Have a tool call not be made; the model reads the reason and goes on."""
    _decide(task, call, {"decision": "refuse", "reason": reason}, as_json)


def _decide(task: str, call: str | None, body: dict[str, Any], as_json: bool) -> None:
    with friendly(as_json), ApiClient(load_settings()) as api:
        if call is None:
            found = api.get(f"/v1/tasks/{task}/approvals")["approvals"]
            waiting = [item["call_id"] for item in found if item["status"] == "waiting"]
            if len(waiting) != 1:
                named = ", ".join(waiting) or "none"
                fail(f"name the call; waiting: {named}", as_json)
            call = waiting[0]
        decided = api.post(f"/v1/tasks/{task}/approvals/{call}", body)
    if as_json:
        print_json(decided)
    else:
        console.print(f"{decided['tool']}: {decided['status']}", markup=False)
