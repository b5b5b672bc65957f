"""`overline batch`: a file of OpenAI's requests, answered into another one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from uuid_utils.compat import uuid7

from api.cli.client import ApiClient, ApiUnreachable
from api.cli.render import (
    REFUSED,
    can_write,
    complaints,
    console,
    fail,
    friendly,
    money,
    print_json,
    print_table,
)
from settings import load_settings

__all__ = ["batch"]

_POLL_S = 0.5
_GIVE_UP_S = 60.0
_ENDED = ("completed", "failed", "expired", "cancelled")

batch = typer.Typer(no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="The batch: `batch_…`.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write what was answered into this file.")
]
Errors = Annotated[
    Path | None, typer.Option("--errors", help="Write what was not answered into this file.")
]


@batch.command()
def submit(
    file: Annotated[
        Path,
        typer.Argument(
            help="A request a line: `custom_id`, `method`, `url`, `body`.", metavar="FILE.jsonl"
        ),
    ],
    endpoint: Annotated[
        str | None, typer.Option(help="What the lines ask for; by default the first one's `url`.")
    ] = None,
    window: Annotated[str, typer.Option(help="Until when: a number of s, m, h or d.")] = "24h",
    on_budget: Annotated[
        str, typer.Option(help="Whether a line that no budget has room for will `fail` or `wait`.")
    ] = "fail",
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Stay until it has ended.")] = False,
    output: Output = None,
    errors: Errors = None,
    as_json: Json = False,
) -> None:
    """Upload a file and have every line of it answered; prints the batch's id."""
    if not file.is_file():
        fail(f"There is no file {file}.", as_json)
    can_write(output, errors, as_json=as_json)
    with friendly(as_json), ApiClient(load_settings(), timeout_s=120) as api:
        uploaded = _upload(api, file, quiet=as_json)
        body = {
            "input_file_id": uploaded["id"],
            "endpoint": endpoint or _endpoint_of(file, as_json),
            "completion_window": window,
        }
        headers = {"Idempotency-Key": str(uuid7()), "X-Overline-On-Budget": on_budget}
        made = api.post("/v1/batches", body, headers)
        if wait or output or errors:
            if not as_json:
                complaints.print(f"batch {made['id']}", markup=False)
            made = _wait(api, made["id"], quiet=as_json)
            _save(api, made, output, errors)
        _show(made, as_json)
        if made["status"] in ("failed", "expired", "cancelled"):
            raise typer.Exit(REFUSED)


@batch.command("list")
def list_batches(
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many.")] = 20,
    after: Annotated[str | None, typer.Option(help="Only those after this batch.")] = None,
    as_json: Json = False,
) -> None:
    """List batches, newest first."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        page = api.get("/v1/batches", {"limit": limit, "after": after})
    if as_json:
        print_json(page["data"])
        return
    table = Table(box=None, pad_edge=False)
    for name in ("batch", "status", "endpoint", "answered", "failed", "of", "cost"):
        table.add_column(name)
    for each in page["data"]:
        counts = each["request_counts"]
        table.add_row(
            each["id"],
            each["status"],
            each["endpoint"],
            *(str(counts[name]) for name in ("completed", "failed", "total")),
            money(each["cost_usd"]),
        )
    print_table(table)
    if page["has_more"]:
        complaints.print(f"more: --after {page['last_id']}", markup=False)


@batch.command()
def show(
    batch_id: Id,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Stay until it has ended.")] = False,
    as_json: Json = False,
) -> None:
    """Say how far a batch is, and why it failed if it did."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        found = _wait(api, batch_id, quiet=as_json) if wait else api.get(f"/v1/batches/{batch_id}")
    _show(found, as_json)


@batch.command()
def cancel(batch_id: Id, as_json: Json = False) -> None:
    """Have a batch begin nothing more; what was answered stays."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        _show(api.post(f"/v1/batches/{batch_id}/cancel"), as_json)


@batch.command()
def results(
    batch_id: Id,
    failed: Annotated[
        bool, typer.Option("--failed", help="What was not answered, in place of what was.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write them into this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print what came of the lines of a batch that has ended, as JSON lines."""
    can_write(output, as_json=as_json)
    with friendly(as_json), ApiClient(load_settings(), timeout_s=120) as api:
        found = api.get(f"/v1/batches/{batch_id}")
        if found["status"] not in _ENDED:
            fail(f"The batch is {found['status']}: `overline batch show --wait`.", as_json)
        file_id = found["error_file_id" if failed else "output_file_id"]
        if file_id is None:
            complaints.print("There are none.")
            return
        if output is not None:
            _download(api, file_id, output)
            return
        for piece in api.download(f"/v1/files/{file_id}/content"):
            sys.stdout.buffer.write(piece)
        sys.stdout.flush()


class _Told:
    """A file that tells how much of it was read."""

    def __init__(self, content: BinaryIO, progress: Progress, task: Any) -> None:
        self._content = content
        self._progress = progress
        self._task = task

    def read(self, size: int = -1) -> bytes:
        data = self._content.read(size)
        self._progress.update(self._task, advance=len(data))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    def __iter__(self) -> Iterator[bytes]:
        while data := self.read(1 << 16):
            yield data


def _upload(api: ApiClient, file: Path, *, quiet: bool) -> Any:
    with _bar(quiet=quiet) as progress, file.open("rb") as content:
        task = progress.add_task("upload", total=file.stat().st_size)
        told = cast("BinaryIO", _Told(content, progress, task))
        return api.upload("/v1/files", file.name, told, {"purpose": "batch"})


def _endpoint_of(file: Path, as_json: bool) -> str:
    with file.open("rb") as content:
        first = next((line for line in content if line.strip()), b"")
    url = json.loads(first).get("url")
    if not isinstance(url, str):
        fail("The first line has no `url`: say --endpoint.", as_json)
    return url


def _wait(api: ApiClient, batch_id: str, *, quiet: bool) -> Any:
    """Return a batch once it has ended; over an API that is away for a while."""
    away_since: float | None = None
    with _bar(quiet=quiet) as progress:
        task = progress.add_task("validating", total=None)
        while True:
            try:
                found = api.get(f"/v1/batches/{batch_id}")
                away_since = None
            except ApiUnreachable:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > _GIVE_UP_S:
                    raise
                time.sleep(_POLL_S)
                continue
            counts = found["request_counts"]
            progress.update(
                task,
                description=found["status"],
                total=counts["total"] or None,
                completed=counts["completed"] + counts["failed"],
            )
            if found["status"] in _ENDED:
                return found
            time.sleep(_POLL_S)


def _bar(*, quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=complaints,
        disable=quiet or not complaints.is_terminal,
        transient=True,
    )


def _save(api: ApiClient, ended: Any, output: Path | None, errors: Path | None) -> None:
    for path, file_id in ((output, ended["output_file_id"]), (errors, ended["error_file_id"])):
        if path is not None:
            if file_id is None:
                path.write_bytes(b"")
            else:
                _download(api, file_id, path)


def _download(api: ApiClient, file_id: str, path: Path) -> None:
    with path.open("wb") as file:
        for piece in api.download(f"/v1/files/{file_id}/content"):
            file.write(piece)


def _show(found: Any, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    counts = found["request_counts"]
    console.print(found["id"], markup=False)
    complaints.print(
        f"{found['status']}: {counts['completed']} answered, {counts['failed']} failed, of "
        f"{counts['total']}; {money(found['cost_usd'])}"
    )
    for error in (found["errors"] or {}).get("data") or ():
        where = f"line {error['line']}: " if error["line"] else ""
        complaints.print(f"  {where}{error['message']} ({error['code']})", markup=False)
