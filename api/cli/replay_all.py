"""`overline replay --all`: what runs and what ended lately, against today's code."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict, dataclass
from datetime import timedelta

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from api.cli.histories import connected, download, recent
from api.cli.render import complaints, console, fail, print_json
from api.cli.replaying import replay_history
from settings import Settings

__all__ = ["Break", "period", "replay_recent"]

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class Break:
    """A workflow that today's code would not carry on.

    Attributes:
        workflow_id: Its id.
        run_id: Its run.
        workflow_type: `AgentTask`, ….
        running: Whether it still runs: a deploy would hurt it.
        event: Recorded event at which today's code decides otherwise; None when unknown.
        reason: Why, in Temporal's words.
    """

    workflow_id: str
    run_id: str
    workflow_type: str
    running: bool
    event: int | None
    reason: str


def period(text: str, as_json: bool) -> timedelta:
    """Read a period such as `90m`, `12h`, `7d`, `2w`."""
    found = re.fullmatch(r"(\d{1,5})([mhdw])", text.strip())
    if found is None:
        fail(f"--since: {text!r} is no period; write it as 90m, 12h, 7d or 2w.", as_json, status=2)
    return timedelta(**{_UNITS[found.group(2)]: int(found.group(1))})


async def replay_recent(
    settings: Settings, since: timedelta, concurrency: int, as_json: bool
) -> bool:
    """Replay all, tell of every break, and return whether there was none."""
    breaks: list[Break] = []
    gone = events = 0
    async with connected(settings, as_json) as client:
        found = await recent(client, since)
        gate = asyncio.Semaphore(concurrency)
        with _progress(as_json) as progress:
            shown = progress.add_task("replaying", total=len(found))

            async def one(run: WorkflowExecution) -> None:
                nonlocal gone, events
                async with gate:
                    seen = await _replay(client, settings, run)
                progress.advance(shown)
                if seen is None:
                    gone += 1
                elif isinstance(seen, Break):
                    breaks.append(seen)
                else:
                    events += seen

            await asyncio.gather(*(one(run) for run in found))
    breaks.sort(key=lambda each: each.workflow_id)
    replayed = len(found) - gone - len(breaks)
    if as_json:
        print_json(
            {
                "since_seconds": int(since.total_seconds()),
                "workflows": len(found),
                "replays": replayed,
                "gone": gone,
                "breaks": [asdict(each) for each in breaks],
            }
        )
    else:
        for each in breaks:
            console.print(_line(each))
        colour = "red" if breaks else "green"
        running = sum(each.running for each in breaks)
        console.print(
            f"[{colour}]{replayed} of {len(found)} replay[/{colour}], {events:,} events; "
            f"{len(breaks)} break, {running} of them still running"
            + (f"; {gone} vanished meanwhile" if gone else "")
        )
    return not breaks


async def _replay(client: Client, settings: Settings, run: WorkflowExecution) -> Break | int | None:
    """Return the break, the number of events replayed, or None when the history is gone."""
    try:
        history = await download(client, run.id, run.run_id)
    except RPCError as exc:
        if exc.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    result = await replay_history(settings, history)
    if result.replays:
        return result.events
    return Break(
        workflow_id=run.id,
        run_id=run.run_id,
        workflow_type=run.workflow_type,
        running=run.close_time is None,
        event=result.event,
        reason=result.reason,
    )


def _line(found: Break) -> str:
    state = "running" if found.running else "ended"
    return (
        f"[red]breaks[/red] {found.workflow_id} ({found.workflow_type}, {state}) at event "
        f"{found.event}: {escape(found.reason)}"
    )


def _progress(as_json: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=complaints,
        transient=True,
        disable=as_json or not complaints.is_terminal,
    )
