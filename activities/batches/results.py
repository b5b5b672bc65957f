"""The files of a batch that begins nothing more: what was answered, and what was not."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from store import batch_lines, files
from store.batches import BatchWork
from store.database import Database

__all__ = ["Written", "write_results"]

PART_BYTES = 1 << 20
_PAGE = 50


class Written:
    """One file that is being written: line by line, kept in pieces.

    The same lines in the same order make the same pieces, so it is safe to write it again.
    """

    def __init__(self, db: Database, organisation_id: UUID, file_id: UUID) -> None:
        self._db = db
        self._organisation_id = organisation_id
        self.file_id = file_id
        self.size = 0
        self.lines = 0
        self._part = 0
        self._held: list[bytes] = []
        self._held_bytes = 0

    async def begin(self, work: BatchWork, filename: str, keep: timedelta) -> None:
        """Have the file be on file."""
        await files.begin_file(
            self._db,
            self._organisation_id,
            file_id=self.file_id,
            team_id=work.team_id,
            key_id=work.key_id,
            filename=filename,
            purpose="batch_output",
            keep=keep,
        )

    async def add(self, line: bytes) -> None:
        """Add a line."""
        self._held += (line, b"\n")
        self._held_bytes += len(line) + 1
        self.lines += 1
        if self._held_bytes >= PART_BYTES:
            await self._flush()

    async def end(self) -> None:
        """Write the rest, and how much it is; a file without a line is none."""
        if not self.lines:
            await files.discard_file(self._db, self._organisation_id, self.file_id)
            return
        await self._flush()
        await files.finish_file(
            self._db,
            self._organisation_id,
            self.file_id,
            size=self.size,
            lines=self.lines,
            # Nobody's before the batch has ended, in the statement that ends it.
            ready=False,
        )

    async def _flush(self) -> None:
        if self._held:
            await files.add_part(
                self._db, self._organisation_id, self.file_id, self._part, b"".join(self._held)
            )
            self._part += 1
            self.size += self._held_bytes
            self._held, self._held_bytes = [], 0


async def write_results(
    db: Database,
    organisation_id: UUID,
    batch_id: UUID,
    work: BatchWork,
    *,
    output_file_id: UUID,
    error_file_id: UUID,
) -> None:
    """Write both files of a batch."""
    output = Written(db, organisation_id, output_file_id)
    errors = Written(db, organisation_id, error_file_id)
    for file, kind in ((output, "output"), (errors, "error")):
        await file.begin(work, f"batch_{batch_id.hex}_{kind}.jsonl", work.keep_output)
    after = 0
    while page := await batch_lines.results_of(
        db, organisation_id, batch_id, after=after, limit=_PAGE
    ):
        for result in page:
            await (output if result.state == "answered" else errors).add(result.result)
        after = page[-1].line
    await output.end()
    await errors.end()
