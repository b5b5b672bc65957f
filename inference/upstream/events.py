"""Server-sent events out of bytes that come as they like."""

from __future__ import annotations

__all__ = ["Events"]

# No event of a stream is near this; an upstream that never ends a line must not fill the memory.
MAX_EVENT_BYTES = 16_000_000


class Events:
    """Takes bytes, gives the data of the events that are complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """Return the data of the events that these bytes complete.

        Raises:
            ValueError: A line is longer than any event may be.
        """
        lines = (self._rest + received).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        found: list[bytes] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].strip())
            elif self._data and line in (b"", b"\r"):
                found.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
        return found

    def end(self) -> list[bytes]:
        """Return the event that the end of the stream completes, if there is one."""
        return self.feed(b"\n\n")
