"""Reads the metadata of a GGUF file: everything in front of the tensors.

Memory-mapped and a hundred lines; the `gguf` package takes seconds for the same.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from inference.errors import ArtefactError

_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")


def read_metadata(path: Path) -> dict[str, Any]:
    """The key-value part of a GGUF file.

    Raises:
        ArtefactError: The file is missing, or is not a GGUF file of a known version.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).read()
    except (OSError, ValueError, struct.error, KeyError) as error:
        raise ArtefactError(f"{path} cannot be read as GGUF: {error}") from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def read(self) -> dict[str, Any]:
        if self._data[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version, _, pairs = struct.unpack_from("<IQQ", self._data, 4)
        if version not in (2, 3):
            raise ValueError(f"version {version} is not known")
        self._at = 24
        found: dict[str, Any] = {}
        for _ in range(pairs):
            key = self._string()
            found[key] = self._value(self._scalar("I"))
        return found

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        inner = self._scalar("I")
        length = self._scalar("Q")
        if inner in (_STRING, _ARRAY):
            return [self._value(inner) for _ in range(length)]
        many = struct.Struct(f"<{length}{_SCALARS[inner]}")
        values = list(many.unpack_from(self._data, self._at))
        self._at += many.size
        return values

    def _string(self) -> str:
        (length,) = _LENGTH.unpack_from(self._data, self._at)
        start = self._at + 8
        self._at = start + length
        return self._data[start : self._at].decode()

    def _scalar(self, code: str) -> Any:
        one = struct.Struct(f"<{code}")
        (value,) = one.unpack_from(self._data, self._at)
        self._at += one.size
        return value
