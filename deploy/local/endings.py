"""How a process ended, and whether it could ever have run on this machine."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

from deploy.local.errors import CannotRunHere

__all__ = ["cannot_run", "how_ended", "unfit"]

# What loaders say of a program made for another C library or processor.
_UNFIT = ("GLIBC", "error while loading shared libraries", "Exec format error")


def cannot_run(instead: tuple[str, str, str], reason: str) -> CannotRunHere:
    """Return the error that names the way out; see `deploy.local.part.Part.instead`."""
    what, setting, example = instead
    return CannotRunHere(what, setting, reason, example)


def unfit(code: int | None, log: Path, start: int) -> str:
    """Why a program does not run on this machine at all, if that is why it ended; else empty.

    Args:
        code: Its exit code.
        log: Its log.
        start: Where in the log this start of it began, in bytes.
    """
    if code == -signal.SIGILL:
        return "the processor lacks an instruction that it uses"
    if code in (None, 0):
        return ""
    with log.open("rb") as file:
        file.seek(start)
        said = file.read(65_536).decode(errors="replace")
    for line in said.splitlines():
        if any(sign in line for sign in _UNFIT):
            return line.strip()
    return ""


def how_ended(code: int) -> str:
    """Say how a process ended, for a person.

    Args:
        code: Its exit code; negative for a signal.
    """
    if code >= 0:
        return f"ended by itself with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
