"""`overline replay`: do histories still run through today's workflow code?"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from temporalio.client import WorkflowHistory

from api.cli.bundle import BundleRefused, read_bundle
from api.cli.histories import all_runs, connected, saved, workflow_id_of
from api.cli.render import console, fail, print_json
from api.cli.replay_all import period, replay_recent
from api.cli.replaying import Replay, replay_history
from settings import Settings, load_settings

__all__ = ["Replay", "replay", "replay_history"]


def replay(
    task: Annotated[
        str | None,
        typer.Argument(
            help="Task id, workflow id, the file of a history in JSON, or a bundle of `export`."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Replay everything that runs or ended lately.")
    ] = False,
    since: Annotated[
        str, typer.Option(help="With --all: how far back, such as 90m, 12h or 7d.")
    ] = "1d",
    concurrency: Annotated[
        int, typer.Option(min=1, max=32, help="With --all: histories at a time.")
    ] = 4,
    stop: Annotated[
        bool, typer.Option("--break", help="Stop in the workflow's first line, under pdb.")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(help="Also write the (last run's) history, still encrypted, to this file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Replay histories against today's code; exit 1 if one diverges."""
    settings = load_settings()
    if everything == (task is not None):
        fail("Say which task, or --all.", as_json, status=2)
    if everything:
        if stop or save is not None:
            fail("--break and --save are for one task.", as_json, status=2)
        back = period(since, as_json)
        whole = asyncio.run(replay_recent(settings, back, concurrency, as_json))
        raise typer.Exit(0 if whole else 1)
    assert task is not None
    histories, namespace = _histories(settings, task, as_json)
    if save is not None:
        save.write_text(histories[-1].to_json(), encoding="utf-8")
    results = asyncio.run(_replay_each(settings, histories, namespace, stop))
    if as_json and len(results) == 1:
        print_json(asdict(results[0]))
    elif as_json:
        whole = all(result.replays for result in results)
        print_json(
            {
                "workflow_id": results[0].workflow_id,
                "replays": whole,
                "runs": [asdict(result) for result in results],
            }
        )
    else:
        for result in results:
            _tell(result)
    if not all(result.replays for result in results):
        raise typer.Exit(1)


def _histories(
    settings: Settings, task: str, as_json: bool
) -> tuple[list[WorkflowHistory], str | None]:
    """Return the runs, and the namespace they were recorded in where that is known."""
    path = Path(task)
    if task.endswith(".json") and path.is_file():
        return [saved(path, as_json)], None
    if task.endswith(".zip"):
        try:
            bundle = read_bundle(path)
        except BundleRefused as refused:
            fail(str(refused), as_json)
        return list(bundle.histories), bundle.namespace
    return asyncio.run(_download(settings, workflow_id_of(task), as_json)), None


async def _download(settings: Settings, workflow_id: str, as_json: bool) -> list[WorkflowHistory]:
    async with connected(settings, as_json) as client:
        return await all_runs(client, workflow_id, as_json)


async def _replay_each(
    settings: Settings, histories: list[WorkflowHistory], namespace: str | None, stop: bool
) -> list[Replay]:
    return [
        await replay_history(settings, history, namespace=namespace, stop_at_start=stop)
        for history in histories
    ]


def _tell(result: Replay) -> None:
    if result.replays:
        console.print(
            f"[green]replays[/green]: {result.workflow_id}, {result.events} events, every decision "
            "the same as recorded"
        )
        return
    console.print(
        f"[red]diverges[/red]: {result.workflow_id}, at event {result.event} of {result.events}"
    )
    console.print(result.divergence or "", highlight=False, markup=False)
