"""The upstreams' keys, by name, in a file of the operator's own.

No tool can name them: the secrets of tools are in another file. The file is read again when it has
changed, so a rotated key counts at once and without a restart.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from inference.errors import EngineDenied

__all__ = ["UpstreamKeys"]

_FILE = TypeAdapter(dict[str, str])


class UpstreamKeys:
    """Reads `{"name": "key"}`, JSON."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._read_as: tuple[int, int, int] | None = None
        self._keys: dict[str, str] = {}

    def of(self, name: str | None) -> str | None:
        """Return a key; None for an upstream that wants none.

        Raises:
            EngineDenied: There is no such key: an operator must act.
        """
        if name is None:
            return None
        try:
            keys = self._current()
        except (OSError, ValidationError):
            # The text of either could hold a key.
            raise EngineDenied("the file of the upstreams' keys cannot be read") from None
        if name not in keys:
            raise EngineDenied(f"there is no key {name!r} in the file of the upstreams' keys")
        return keys[name]

    def _current(self) -> dict[str, str]:
        if self._file is None:
            return {}
        found = self._file.stat()
        seen = (found.st_mtime_ns, found.st_size, found.st_ino)
        if seen != self._read_as:
            self._keys = _FILE.validate_json(self._file.read_bytes())
            self._read_as = seen
        return self._keys
