"""`overline ingest`: files and folders into a collection, and wait until they can be found."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from api.cli.client import ApiClient, ApiRefusal
from api.cli.render import complaints, console, fail, friendly, print_json
from settings import load_settings

__all__ = ["ingest", "ingest_paths"]

#: Text that is worth retrieving; anything else in a folder is passed over.
SUFFIXES = frozenset({".md", ".markdown", ".txt", ".rst"})
_CONFLICT = 409


def ingest(
    collection: Annotated[str, typer.Argument(help="Collection; made if there is none.")],
    paths: Annotated[
        list[Path], typer.Argument(help="Files, or folders to read .md, .rst and .txt from.")
    ],
    wait_s: Annotated[
        float, typer.Option("--wait", help="How long to wait for the ingestion, in seconds.")
    ] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Put files into a collection; unchanged ones are left alone."""
    files = list(_files(paths, as_json))
    if not files:
        fail("There is nothing to ingest: no .md, .rst or .txt file.", as_json)
    with friendly(as_json), ApiClient(load_settings()) as api:
        result = ingest_paths(api, collection, files, wait_s=wait_s, progress=not as_json)
    if as_json:
        print_json(result)
    else:
        console.print(
            f"{collection}: {result['ingested']} ingested, {result['unchanged']} unchanged, "
            f"{result['chunks']} chunks in all"
        )
        for failure in result["failed"]:
            complaints.print(f"failed: {failure}", markup=False)
    if result["failed"]:
        raise typer.Exit(1)


def ingest_paths(
    api: ApiClient,
    collection: str,
    files: list[tuple[Path, str]],
    *,
    wait_s: float = 300.0,
    progress: bool = True,
) -> dict[str, Any]:
    """Send files and wait until each is searchable.

    Args:
        api: The API.
        collection: Name of the collection; made if there is none.
        files: Files, each with the id it has in the collection.
        wait_s: How long to wait for all of them, in seconds.
        progress: Show a progress bar.

    Returns:
        The numbers ingested, unchanged and chunks, and the ids that failed.
    """
    _ensure_collection(api, collection)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=complaints,
        disable=not progress,
    )
    documents: dict[str, dict[str, Any]] = {}
    with bar:
        sending = bar.add_task(f"sending to {collection}", total=len(files))
        for path, external_id in files:
            text = path.read_text(encoding="utf-8", errors="replace")
            if text.strip():
                documents[external_id] = api.post(
                    f"/v1/collections/{collection}/documents",
                    {"external_id": external_id, "title": path.name, "text": text},
                )
            bar.advance(sending)
        waiting = bar.add_task("splitting and embedding", total=len(documents))
        deadline = time.monotonic() + wait_s
        pending = set(documents)
        while pending and time.monotonic() < deadline:
            for external_id in sorted(pending):
                sent = documents[external_id]
                now = api.get(f"/v1/collections/{collection}/documents/{sent['id']}")
                if now["status"] in ("ready", "failed"):
                    pending.discard(external_id)
                    documents[external_id] = {**sent, **now}
                    bar.advance(waiting)
            if pending:
                time.sleep(0.3)
    failed = sorted(pending | {key for key, doc in documents.items() if doc["status"] == "failed"})
    unchanged = sum(not document["changed"] for document in documents.values())
    return {
        "collection": collection,
        "documents": len(documents),
        "ingested": len(documents) - unchanged - len(failed),
        "unchanged": unchanged,
        "chunks": sum(int(document.get("chunks") or 0) for document in documents.values()),
        "failed": failed,
    }


def _ensure_collection(api: ApiClient, name: str) -> None:
    try:
        api.post("/v1/collections", {"name": name})
    except ApiRefusal as refusal:
        if refusal.status != _CONFLICT:
            raise


def _files(paths: list[Path], as_json: bool) -> Iterator[tuple[Path, str]]:
    for path in paths:
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                if file.suffix.lower() in SUFFIXES and file.is_file():
                    yield file, file.relative_to(path.parent).as_posix()
        elif path.is_file():
            yield path, path.name
        else:
            fail(f"There is no file or folder {str(path)!r}.", as_json)
