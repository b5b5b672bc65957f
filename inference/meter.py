"""The engine's own count of tokens, which outlives the process that counts.

One file of fixed-size records, mapped into memory: a store into the mapping is in the kernel's
page cache at once, so `kill -9` of the model process loses nothing (a power cut may). The next
process finds what was running and calls it lost, with the tokens it had reached. This is what
the ledger is checked against.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

STATES = ("free", "running", "finished", "cancelled", "failed", "lost")

# state, prompt, cached, completion tokens, wall clock of the start, id length, id
_RECORD = struct.Struct("<Qqqqdi204s")
_COUNTS = struct.Struct("<qqq")
_STATE = struct.Struct("<Q")
_SIZE = _RECORD.size
_GROW = 1024 * _SIZE
_KEEP_SECONDS = 7 * 24 * 3600.0
MAX_ID = 204


@dataclass(frozen=True)
class Reading:
    """What the meter says of one request id, or of all together.

    Attributes:
        state: The newest attempt's state; "" for totals.
        requests: How many attempts the counts sum over.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    state: str
    requests: int


class Entry:
    """The record of one running request."""

    def __init__(self, meter: Meter, offset: int) -> None:
        self._meter = meter
        self._offset = offset
        self._closed = False

    def count(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> None:
        """Sets the totals of this request so far."""
        self._meter.write_counts(self._offset, prompt_tokens, cached_tokens, completion_tokens)

    def close(self, state: str) -> None:
        """Ends the record; only the first call counts."""
        if not self._closed:
            self._closed = True
            self._meter.write_state(self._offset, state)


class Meter:
    """A folder's meter file. One process writes it at a time."""

    def __init__(self, folder: Path) -> None:
        """Opens or makes the file; requests of a dead process become "lost"."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "meter.bin"
        self._lock = threading.Lock()
        self._index: dict[str, list[int]] = {}
        self._compact()
        self._file = self._path.open("r+b")
        self._end = os.fstat(self._file.fileno()).st_size
        self._map = self._grown()
        for offset in range(0, self._end, _SIZE):
            record = _Record(*_RECORD.unpack_from(self._map, offset))
            if record.state == STATES.index("running"):
                self.write_state(offset, "lost")
            name = record.raw[: record.length].decode()
            self._index.setdefault(name, []).append(offset)

    def begin(self, request_id: str) -> Entry:
        """Starts a record.

        Raises:
            ValueError: The id is longer than MAX_ID bytes.
        """
        raw = request_id.encode()
        if len(raw) > MAX_ID:
            raise ValueError(f"a request id may have {MAX_ID} bytes, this one has {len(raw)}")
        with self._lock:
            if self._end + _SIZE > len(self._map):
                self._map = self._grown()
            offset = self._end
            self._end += _SIZE
            _RECORD.pack_into(
                self._map, offset, STATES.index("running"), 0, 0, 0, time.time(), len(raw), raw
            )
            self._index.setdefault(request_id, []).append(offset)
        return Entry(self, offset)

    def write_counts(self, offset: int, prompt: int, cached: int, completion: int) -> None:
        """Stores a record's counts."""
        with self._lock:
            _COUNTS.pack_into(self._map, offset + _STATE.size, prompt, cached, completion)

    def write_state(self, offset: int, state: str) -> None:
        """Stores a record's state."""
        with self._lock:
            _STATE.pack_into(self._map, offset, STATES.index(state))

    def read(self, request_id: str) -> Reading | None:
        """The sum over all attempts under that id, or None when it was never seen."""
        with self._lock:
            offsets = self._index.get(request_id)
            return self._sum(offsets) if offsets else None

    def totals(self) -> Reading:
        """The sum over everything this model ever did."""
        with self._lock:
            every = [offset for offsets in self._index.values() for offset in offsets]
            total = self._sum(every)
        return replace(total, state="")

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._map.close()
            self._file.close()

    def _sum(self, offsets: list[int]) -> Reading:
        records = [_Record(*_RECORD.unpack_from(self._map, offset)) for offset in offsets]
        return Reading(
            prompt_tokens=sum(r.prompt for r in records),
            cached_tokens=sum(r.cached for r in records),
            completion_tokens=sum(r.completion for r in records),
            state=STATES[records[-1].state] if records else "",
            requests=sum(r.requests for r in records),
        )

    def _grown(self) -> mmap.mmap:
        size = (self._end // _GROW + 1) * _GROW
        os.ftruncate(self._file.fileno(), size)
        return mmap.mmap(self._file.fileno(), size)

    def _compact(self) -> None:
        """Folds records of finished requests older than a week into one, to bound the file."""
        records = list(_records(self._path))
        horizon = time.time() - _KEEP_SECONDS
        old = [r for r in records if r.started < horizon and r.state != STATES.index("running")]
        kept = [r for r in records if r.started >= horizon or r.state == STATES.index("running")]
        if old:
            name = _OLD + str(sum(r.requests for r in old)).encode()
            sums = (
                sum(r.prompt for r in old),
                sum(r.cached for r in old),
                sum(r.completion for r in old),
            )
            kept.insert(0, _Record(STATES.index("finished"), *sums, 0.0, len(name), name))
        # Also cuts off the unused tail that growing leaves.
        scratch = self._path.with_suffix(".new")
        with scratch.open("wb") as out:
            out.write(b"".join(_RECORD.pack(*record) for record in kept))
            out.flush()
            os.fsync(out.fileno())
        scratch.replace(self._path)


class _Record(NamedTuple):
    state: int
    prompt: int
    cached: int
    completion: int
    started: float
    length: int
    raw: bytes

    @property
    def requests(self) -> int:
        """A folded record keeps in its id how many it stands for."""
        return int(self.raw[1 : self.length]) if self.raw[:1] == _OLD else 1


_OLD = b"\0"


def _records(path: Path) -> Iterator[_Record]:
    if not path.exists():
        return
    raw = path.read_bytes()
    for offset in range(0, len(raw) - _SIZE + 1, _SIZE):
        record = _Record(*_RECORD.unpack_from(raw, offset))
        if record.state:
            yield record
