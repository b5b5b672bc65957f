"""A task in one file: its histories in clear, its rows, its events, and a manifest of it all.

    manifest.json        what is in it: versions, when, sha256 of every member
    history/0001.json    a run of the workflow, Temporal's JSON, payloads in clear
    task.json  steps.json  calls.json  tools.json  events.json     rows as Postgres has them

The digests tell of damage, and of a member that somebody changed; nobody signs the manifest.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from temporalio.client import WorkflowHistory

__all__ = ["Bundle", "BundleRefused", "Manifest", "read_bundle", "write_bundle"]

FORMAT = "overline-bundle"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"

# What one opens may come from anywhere. A run's history ends at 50 MB in Temporal's own form.
MOST_MEMBERS = 2_000
MOST_MEMBER_BYTES = 256 * 2**20
MOST_BYTES = 1024 * 2**20
MOST_MANIFEST_BYTES = 2**20


class BundleRefused(Exception):
    """The file is no bundle, or not as it was written; the text says what is wrong."""


class Member(BaseModel):
    """A file of a bundle."""

    model_config = ConfigDict(frozen=True)

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class Manifest(BaseModel):
    """What a bundle says of itself."""

    model_config = ConfigDict(frozen=True)

    format: str
    format_version: int
    created_at: datetime
    versions: dict[str, str]
    namespace: str
    task_id: str
    workflow_id: str
    redacted: bool
    runs: tuple[str, ...]
    members: dict[str, Member]


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read and found whole.

    Attributes:
        manifest: What it says of itself.
        histories: Runs of the workflow, the first one first.
        rows: The other members, parsed, by name.
    """

    manifest: Manifest
    histories: tuple[WorkflowHistory, ...]
    rows: Mapping[str, Any]

    @property
    def namespace(self) -> str:
        """Namespace the histories were recorded in."""
        return self.manifest.namespace


def write_bundle(
    path: Path,
    *,
    task_id: str,
    workflow_id: str,
    namespace: str,
    versions: Mapping[str, str],
    redacted: bool,
    histories: Sequence[tuple[str, str]],
    rows: Mapping[str, Any],
) -> Manifest:
    """Write a bundle, whole or not at all.

    Args:
        path: Where to; an existing file is replaced.
        task_id: The task.
        workflow_id: Its workflow.
        namespace: Temporal namespace.
        versions: Versions of what wrote it, by name.
        redacted: Whether texts were taken out.
        histories: Run id and JSON of every run, the first one first.
        rows: Other members by name, without their ending.
    """
    members = {
        f"history/{number:04}.json": text.encode()
        for number, (_, text) in enumerate(histories, start=1)
    }
    for name, value in rows.items():
        members[f"{name}.json"] = json.dumps(value, ensure_ascii=False, indent=1).encode()
    manifest = Manifest(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        created_at=datetime.now(UTC),
        versions=dict(versions),
        namespace=namespace,
        task_id=task_id,
        workflow_id=workflow_id,
        redacted=redacted,
        runs=tuple(run_id for run_id, _ in histories),
        members={
            name: Member(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
            for name, data in members.items()
        },
    )
    partial = path.with_name(path.name + ".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, manifest.model_dump_json(indent=1))
        for name, data in members.items():
            archive.writestr(name, data)
    partial.replace(path)
    return manifest


def read_bundle(
    path: Path, *, most_bytes: int = MOST_BYTES, most_member_bytes: int = MOST_MEMBER_BYTES
) -> Bundle:
    """Read a bundle; nothing of it is written anywhere.

    Args:
        path: The file.
        most_bytes: Largest sum of its members, in bytes.
        most_member_bytes: Largest member, in bytes.

    Raises:
        BundleRefused: It is not there, not a bundle, too large, or was changed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive, path, most_bytes, most_member_bytes)
    except FileNotFoundError:
        raise BundleRefused(f"There is no file {path}.") from None
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError, zlib.error):
        # Encrypted members and unknown compressions among them.
        raise BundleRefused(f"{path} is damaged, or no zip file of ours.") from None


def _read(archive: zipfile.ZipFile, path: Path, most_bytes: int, most_member_bytes: int) -> Bundle:
    infos = archive.infolist()
    names = [info.filename for info in infos]
    if MANIFEST not in names:
        raise BundleRefused(f"{path} is not a bundle of `overline export`: it has no {MANIFEST}.")
    if len(names) > MOST_MEMBERS or len(set(names)) != len(names):
        raise BundleRefused(f"{path} has too many members, or two of one name.")
    manifest = _manifest(_bounded(archive, MANIFEST, MOST_MANIFEST_BYTES, path), path)
    if set(names) != {MANIFEST, *manifest.members}:
        raise BundleRefused(f"{path} does not hold what its manifest lists.")
    # The size a zip declares is a claim; reading is bounded as well.
    if sum(info.file_size for info in infos) > most_bytes:
        raise BundleRefused(f"{path} is larger than {most_bytes} bytes unpacked.")
    data: dict[str, bytes] = {}
    for name, member in manifest.members.items():
        data[name] = _bounded(archive, name, most_member_bytes, path)
        if hashlib.sha256(data[name]).hexdigest() != member.sha256:
            raise BundleRefused(f"{path}: {name} was changed after it was written.")
    return _parsed(manifest, data, path)


def _parsed(manifest: Manifest, data: Mapping[str, bytes], path: Path) -> Bundle:
    runs = sorted(name for name in data if name.startswith("history/"))
    if not runs or len(runs) != len(manifest.runs):
        raise BundleRefused(f"{path} does not hold the runs its manifest lists.")
    try:
        histories = tuple(
            WorkflowHistory.from_json(manifest.workflow_id, data[name].decode()) for name in runs
        )
        rows = {
            name.removesuffix(".json"): json.loads(content)
            for name, content in data.items()
            if name not in runs
        }
    except (ValueError, AttributeError, TypeError, KeyError):
        raise BundleRefused(f"{path} holds a member that cannot be read.") from None
    if not all(history.events for history in histories):
        raise BundleRefused(f"{path} holds a history without events.")
    return Bundle(manifest, histories, rows)


def _manifest(text: bytes, path: Path) -> Manifest:
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError:
        raise BundleRefused(f"{path}: its {MANIFEST} is not of this format.") from None
    if (manifest.format, manifest.format_version) != (FORMAT, FORMAT_VERSION):
        raise BundleRefused(
            f"{path} is of format {manifest.format} {manifest.format_version}; this version reads "
            f"{FORMAT} {FORMAT_VERSION}."
        )
    return manifest


def _bounded(archive: zipfile.ZipFile, name: str, most: int, path: Path) -> bytes:
    with archive.open(name) as member:
        content = member.read(most + 1)
    if len(content) > most:
        raise BundleRefused(f"{path}: {name} is larger than {most} bytes unpacked.")
    return content
