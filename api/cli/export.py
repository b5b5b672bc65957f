"""`overline export`: a task in one file that replays on another machine, without the key."""

from __future__ import annotations

import asyncio
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import psycopg
import typer
from psycopg.rows import dict_row
from temporalio.api.history.v1 import History
from temporalio.client import WorkflowHistory

from api.cli.bundle import write_bundle
from api.cli.histories import all_runs, connected
from api.cli.payloads import decrypt_in_place, fetch_in_place, payloads_in
from api.cli.redaction import Redaction
from api.cli.render import UNREACHABLE, console, fail, print_json
from api.cli.shelf import opened_shelf
from settings import Settings, load_settings
from store.errors import StoreError
from workflows.client import data_converter
from workflows.codec import EncryptionCodec, PayloadRefused
from workflows.large_payloads import PayloadMissing

__all__ = ["export"]

# What a member of the bundle holds; the ids of tokens are texts in other letters, and stay away.
_ROWS = {
    "steps": "select to_jsonb(s) as row from steps s where task_id = %s order by step",
    "calls": "select to_jsonb(c) as row from model_calls c where task_id = %s"
    " order by started_at, model_call_id",
    "tools": "select to_jsonb(t) as row from tool_calls t where task_id = %s"
    " order by started_at, call_id, attempt",
    "events": """
        select row from (
            select seq, jsonb_build_object('seq', seq, 'step', step, 'type', type,
                       'payload', payload, 'at', at) as row
              from task_events where task_id = %(task)s
            union all
            select event_seq, jsonb_build_object('seq', event_seq, 'step_key', step_key,
                       'type', 'text', 'epoch', epoch, 'text', text,
                       'tokens', cardinality(token_ids), 'at', at)
              from token_chunks where task_id = %(task)s) as every
        order by seq""",
}


def export(
    task: Annotated[str, typer.Argument(help="Task id.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    redact: Annotated[
        bool,
        typer.Option("--redact", help="Take texts out; names, digests, counts and structure stay."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a task's histories, rows and events into one file; `overline replay` takes it.

    Needs Temporal, the payload key and the read-only database role: it is for operators. Without
    --redact the file holds prompts and answers in clear.
    """
    settings = load_settings()
    try:
        task_id = UUID(task.removeprefix("task-"))
    except ValueError:
        fail(f"{task!r} is no task id.", as_json, status=2)
    rows = _rows(settings, task_id, as_json)
    histories = asyncio.run(_histories(settings, f"task-{task_id}", as_json))
    runs = asyncio.run(_in_clear(settings, f"task-{task_id}", histories, as_json))
    if redact:
        redaction = Redaction()
        for _, run in runs:
            for payload in payloads_in(run):
                redaction.payload(payload)
            redaction.message(run)
        rows = {name: redaction.value(value) for name, value in rows.items()}
    try:
        manifest = write_bundle(
            output,
            task_id=str(task_id),
            workflow_id=f"task-{task_id}",
            namespace=settings.temporal_namespace,
            versions=_versions(),
            redacted=redact,
            histories=[
                (run_id, WorkflowHistory(f"task-{task_id}", list(run.events)).to_json())
                for run_id, run in runs
            ],
            rows=rows,
        )
    except OSError as exc:
        fail(f"{output} cannot be written ({exc.strerror}).", as_json)
    if as_json:
        print_json({"file": str(output), **manifest.model_dump(mode="json")})
        return
    events = sum(len(run.events) for _, run in runs)
    console.print(
        f"{output}: {len(runs)} run{'' if len(runs) == 1 else 's'}, {events} events, "
        f"{len(rows['steps'])} steps, {len(rows['calls'])} ledger rows"
        + (", texts redacted" if redact else ", [yellow]texts in clear[/yellow]")
    )


def _rows(settings: Settings, task_id: UUID, as_json: bool) -> dict[str, Any]:
    url = settings.reader_database_url or settings.database_url
    try:
        with psycopg.connect(
            url.get_secret_value(),
            connect_timeout=5,
            application_name="overline export",
            row_factory=dict_row,
        ) as session:
            session.execute("set transaction isolation level repeatable read, read only")
            found = session.execute(
                "select to_jsonb(t) as row from tasks t where task_id = %s", (task_id,)
            ).fetchone()
            if found is None:
                fail("There is no such task.", as_json)
            rows = {"task": found["row"]}
            for name, sql in _ROWS.items():
                values: Any = {"task": task_id} if name == "events" else (task_id,)
                rows[name] = [each["row"] for each in session.execute(sql.encode(), values)]
            return rows
    except psycopg.OperationalError:
        fail(
            "The database does not answer; `overline doctor` says more.",
            as_json,
            status=UNREACHABLE,
        )
    except psycopg.Error as exc:
        fail(
            f"The database refuses ({type(exc).__name__}): export reads with the role of "
            "OVERLINE_READER_DATABASE_URL.",
            as_json,
        )


async def _histories(settings: Settings, workflow_id: str, as_json: bool) -> list[WorkflowHistory]:
    async with connected(settings, as_json) as client:
        return await all_runs(client, workflow_id, as_json)


async def _in_clear(
    settings: Settings, workflow_id: str, histories: list[WorkflowHistory], as_json: bool
) -> list[tuple[str, History]]:
    codec = data_converter(settings).payload_codec
    assert isinstance(codec, EncryptionCodec)
    runs: list[tuple[str, History]] = []
    async with opened_shelf(settings) as shelf:
        for history in histories:
            message = History(events=history.events)
            try:
                await fetch_in_place(message, shelf)
                decrypt_in_place(message, codec)
            except PayloadRefused as refused:
                fail(f"The history of {workflow_id} cannot be decrypted: {refused}.", as_json)
            except PayloadMissing as missing:
                fail(f"The history of {workflow_id} is not whole: {missing}.", as_json)
            except StoreError:
                fail("The database does not answer.", as_json, status=UNREACHABLE)
            runs.append((history.run_id, message))
    return runs


def _versions() -> dict[str, str]:
    python = ".".join(str(part) for part in sys.version_info[:3])
    installed = {name: metadata.version(name) for name in ("overline", "temporalio")}
    return {**installed, "python": python}
