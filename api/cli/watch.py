"""`overline watch`: a task's tokens and steps as they come, from any point on."""

from __future__ import annotations

import sys
from typing import Annotated, Any
from uuid import UUID

import typer

from api.cli.client import ApiClient, TaskEvent
from api.cli.render import (
    called,
    complaints,
    console,
    friendly,
    print_json,
    print_table,
    steps_table,
)
from settings import load_settings

__all__ = ["Screen", "follow", "follow_accepted", "show_result", "watch"]


def watch(
    task: Annotated[str, typer.Argument(help="Task id.")],
    after: Annotated[
        str | None, typer.Option(help="Id of the last event already seen (`step:sequence`).")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every event as one line of JSON.")
    ] = False,
) -> None:
    """Watch a task from its first event to its last, then show what it did and cost."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        if as_json:
            for event in api.events(task, after=after):
                print_json(
                    {
                        "id": event.id,
                        "type": event.type,
                        "step": event.step,
                        "payload": event.payload,
                    }
                )
            return
        succeeded = follow(api, task, as_json=False, after=after)
    if not succeeded:
        raise typer.Exit(1)


def follow(api: ApiClient, task: UUID | str, *, as_json: bool, after: str | None = None) -> bool:
    """Show a task to its end; return whether it succeeded.

    Args:
        api: The API.
        task: Task id.
        as_json: Show nothing until the end, then one JSON object with task and steps.
        after: Id of the last event already seen.
    """
    screen = Screen()
    for event in api.events(task, after=after):
        if not as_json:
            screen.show(event)
    screen.end()
    return show_result(api, task, as_json=as_json)


def follow_accepted(
    api: ApiClient, accepted: dict[str, Any], *, detach: bool, as_json: bool
) -> bool:
    """Show a task that was just accepted to its end, or, detached, only say which one it is.

    Args:
        api: The API.
        accepted: What the API answered to the request.
        detach: Do not wait for it.
        as_json: One JSON object on stdout, and nothing else.

    Returns:
        Whether it succeeded; True when nobody waited for it.
    """
    if detach:
        if as_json:
            print_json(accepted)
        else:
            console.print(accepted["id"])
        return True
    if not as_json:
        complaints.print(f"[dim]task {accepted['id']} · {accepted['links']['web_ui']}[/dim]")
    return follow(api, accepted["id"], as_json=as_json)


def show_result(api: ApiClient, task: UUID | str, *, as_json: bool) -> bool:
    """Show a finished task's answer and steps; return whether it succeeded."""
    result: dict[str, Any] = api.get(f"/v1/tasks/{task}")
    steps: dict[str, Any] = api.get(f"/v1/tasks/{task}/steps")
    succeeded = bool(result["status"] == "succeeded")
    if as_json:
        print_json({**result, "step_list": steps["steps"]})
        return succeeded
    console.print()
    print_table(steps_table(result, steps["steps"]))
    if result.get("error"):
        error = result["error"]
        complaints.print(
            f"{result['status']}: {error.get('message')} ({error.get('code')})", markup=False
        )
    return succeeded


class Screen:
    """Tokens go out as they come; notes about steps get lines of their own."""

    def __init__(self) -> None:
        self._mid_line = False

    def show(self, event: TaskEvent) -> None:
        """Show an event, if it is one for people."""
        payload = event.payload
        if event.type == "text":
            if payload.get("channel") == "answer":
                self._write(str(payload.get("text", "")))
        elif event.type == "step.started":
            self._note(f"step {event.step}")
        elif event.type == "reset":
            self._note(f"step {event.step} starts again: {payload.get('reason', '')}")
        elif event.type == "gap":
            self._note(f"no event of this task is {payload.get('unknown')}: all of it again")
        elif event.type == "step.completed" and payload.get("tool_call"):
            self._note(f"step {event.step} · {called(payload['tool_call'])}")
        elif event.type == "tool.completed" and not payload.get("ok"):
            self._note(f"step {event.step} · the tool failed")

    def end(self) -> None:
        """Leave the cursor at the start of a line."""
        if self._mid_line:
            self._write("\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        if text:
            self._mid_line = not text.endswith("\n")

    def _note(self, text: str) -> None:
        self.end()
        complaints.print(f"[dim]{text.replace('[', '(')}[/dim]")
