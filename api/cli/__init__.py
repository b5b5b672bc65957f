"""The command line `overline`.

Every command lives in a module that is imported when the command is run, and not before: help and
errors come at once, and `overline psql` needs no Temporal client.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from importlib import import_module, metadata
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["main"]

# name: (module, function or group, one line of help)
_COMMANDS = {
    "up": ("api.cli.stack", "up", "Start the embedded stack and keep it up until Ctrl-C."),
    "down": ("api.cli.stack", "down", "Stop the embedded stack; its state stays."),
    "status": ("api.cli.stack", "status", "Show what runs, and where."),
    "logs": ("api.cli.logs", "logs", "Show the logs of the stack or of one part."),
    "doctor": ("api.cli.doctor", "doctor", "Check this machine and the stack, and say what to do."),
    "config": ("api.cli.config", "config", "Show the effective settings, secrets hidden."),
    "submit": ("api.cli.tasks", "submit", "Submit an agent task and watch it."),
    "map": ("api.cli.maps", "map_inputs", "Answer every line of a file, so many at a time."),
    "batch": ("api.cli.batches", "batch", "Have a file of OpenAI's requests answered in time."),
    "tasks": ("api.cli.tasks", "tasks", "List tasks, newest first."),
    "tree": ("api.cli.maps", "tree", "Show a task with the tasks it started."),
    "watch": ("api.cli.watch", "watch", "Follow a task as it goes on."),
    "cancel": ("api.cli.tasks", "cancel", "Cancel a task; the engine stops generating for it."),
    "approve": ("api.cli.approvals", "approve", "Let a tool call be made that waits for you."),
    "refuse": ("api.cli.approvals", "refuse", "Have a tool call not be made, and say why."),
    "pause": ("api.cli.steer", "pause", "Have a task wait before its next step."),
    "resume": ("api.cli.steer", "resume", "Let a paused task go on."),
    "message": ("api.cli.steer", "message", "Say something to a running task."),
    "chat": ("api.cli.chat", "chat", "Hold a conversation, each turn of which is a task."),
    "fork": ("api.cli.steer", "fork", "Rerun a task from one of its steps, with a change."),
    "diff": ("api.cli.steer", "diff", "Compare two tasks step by step."),
    "why": ("api.cli.steer", "why", "Say why a task is not moving, and what to do."),
    "replay": ("api.cli.replay", "replay", "Replay histories against today's code."),
    "export": ("api.cli.export", "export", "Write a task into one file that replays elsewhere."),
    "agent": ("api.cli.agents", "agents", "Apply, list and show agents that tasks can name."),
    "ingest": ("api.cli.ingest", "ingest", "Put files into a collection that tasks can search."),
    "schedule": ("api.cli.schedules", "schedule", "Have a task asked again and again."),
    "budget": ("api.cli.budgets", "budget", "Say what may be spent, and see what is left."),
    "limit": ("api.cli.limits", "limit", "Limit requests, tokens and calls at once."),
    "policy": ("api.cli.policy", "policy", "Say what texts are screened by, and try it."),
    "org": ("api.cli.orgs", "org", "Make and list organisations; for who operates the database."),
    "team": ("api.cli.identity", "team", "Make, list and rename teams."),
    "key": ("api.cli.identity", "key", "Make, restrict, rotate and disable keys."),
    "audit": ("api.cli.audit", "audit", "List who did what, and verify the audit log."),
    "housekeeping": (
        "api.cli.housekeeping",
        "housekeeping",
        "Remove what is kept no longer, or say what would go.",
    ),
    "psql": ("api.cli.psql", "psql", "Open the database, or run SQL on it, read-only."),
    "worker-version": (
        "api.cli.worker_version",
        "worker_version",
        "Say on which build of the workers new tasks begin.",
    ),
    "serve": ("api.cli.processes", "serve", "Run the API in the foreground."),
    "worker": ("api.cli.processes", "worker", "Run one worker in the foreground."),
}


class _LazyGroup(TyperGroup):
    """A group that imports a command's module when the command is asked for."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of a day's work."""
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; while help lists them all, only what help shows."""
        if cmd_name not in _COMMANDS:
            return None
        module, function, text = _COMMANDS[cmd_name]
        if self._listing:
            return TyperCommand(name=cmd_name, help=text)
        found = getattr(import_module(module), function)
        if isinstance(found, typer.Typer):  # a command with commands of its own
            group = typer.main.get_group(found)
            group.name, group.help = cmd_name, text
            return group
        holder = typer.Typer(add_completion=False)
        holder.command(cmd_name)(found)
        return typer.main.get_command(holder)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help page without importing a single command."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"overline {metadata.version('overline')}")
        raise typer.Exit


_app = typer.Typer(
    cls=_LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


@_app.callback()
def _overline(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Overline carries agent tasks through gateway, router, context, cache, engine and ledger."""


def main() -> None:
    """Run the command line; the console script `overline`."""
    try:
        for word in sys.argv:
            word.encode()
    except UnicodeEncodeError:
        sys.stderr.write("What was typed is not UTF-8.\n")
        _leave(2)
    try:
        _app()
    except KeyboardInterrupt:
        _leave(130)
    except SystemExit as ending:
        if not isinstance(ending.code, int | None):
            raise
        _leave(ending.code or 0)


def _leave(status: int) -> NoReturn:
    """End the process, past the end of the interpreter if Temporal's native core has threads.

    One that hands over a result just then aborts it, after all was done and said
    (temporalio/sdk-python#300).
    """
    if "temporalio.bridge.temporal_sdk_bridge" in sys.modules:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # nobody reads it any more
                stream.flush()
        os._exit(status)
    sys.exit(status)
