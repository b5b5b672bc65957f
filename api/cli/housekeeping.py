"""`overline housekeeping`: what is kept no longer goes now, or is counted."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy

from api.cli.histories import connected
from api.cli.render import console, fail, print_json
from settings import Settings, load_settings
from workflows.contracts import HousekeepingInput, Removed

__all__ = ["housekeeping"]

_LIMIT_S = 600.0


def housekeeping(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go, and remove nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Have a worker remove what is kept no longer, as it does itself four times a day.

    Journal, events and prompts of tasks that ended OVERLINE_KEEP_DAYS ago, answers of tools that
    no task points to, payloads whose history is gone, files past their time. Rows of the ledger
    are never removed.
    """
    removed = asyncio.run(_run(load_settings(), dry_run, as_json))
    if as_json:
        print_json(removed.model_dump(mode="json"))
        return
    words = "would go" if dry_run else "went"
    console.print(
        f"{words}: {removed.chunks:,} journal chunks, {removed.events:,} events and "
        f"{removed.prompts:,} prompts of {removed.tasks:,} tasks; {removed.blobs:,} answers of "
        f"tools; {removed.payloads:,} payloads; {removed.files:,} files; {removed.bytes:,} bytes "
        "of blobs and files"
    )


async def _run(settings: Settings, dry_run: bool, as_json: bool) -> Removed:
    async with connected(settings, as_json) as client:
        try:
            async with asyncio.timeout(_LIMIT_S):
                return await _result(client, settings, dry_run)
        except TimeoutError:
            fail("No worker has done it within ten minutes; it goes on.", as_json)
        except WorkflowFailureError as failed:
            fail(f"It failed ({type(failed.cause).__name__}); see the Web UI.", as_json)


async def _result(client: Client, settings: Settings, dry_run: bool) -> Removed:
    removed: Removed = await client.execute_workflow(
        "Housekeeping",
        HousekeepingInput(dry_run=dry_run, files=True),
        id="housekeeping-dry-run" if dry_run else "housekeeping-by-hand",
        task_queue=settings.task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        result_type=Removed,
        static_summary="keep the house",
    )
    return removed
