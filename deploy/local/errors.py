"""What can go wrong with the embedded stack, said so that a person knows what to do."""

from __future__ import annotations

from pathlib import Path

__all__ = ["AlreadyRunning", "CannotRunHere", "PartFailed", "StackError", "log_tail"]


class StackError(Exception):
    """Base of everything the embedded stack refuses or fails at; the text is for people.

    Attributes:
        code: Stable name of the error for ``--json``.
        exit_code: What the command line exits with.
    """

    code = "stack_error"
    exit_code = 1


class AlreadyRunning(StackError):
    """Another stack runs in the same state folder."""

    code = "already_running"
    exit_code = 3


class CannotRunHere(StackError):
    """A wheel's program does not run on this machine."""

    code = "cannot_run_here"
    exit_code = 4

    def __init__(self, what: str, setting: str, reason: str, example: str) -> None:
        """Name the part, the setting that replaces it, and why it does not run."""
        super().__init__(
            f"{what} cannot run on this machine: {reason}\n"
            f"Point {setting} at a server of your own (for example {setting}={example}) "
            "and start again; that part is then not started here."
        )


class PartFailed(StackError):
    """A part did not come up, or keeps dying."""

    code = "part_failed"

    def __init__(self, part: str, reason: str, log: Path | None = None) -> None:
        """Name the part and the reason, and show the end of its log."""
        text = f"{part}: {reason}"
        if log is not None:
            tail = log_tail(log)
            text += f"\nLog: {log}" + (f"\n{tail}" if tail else " (empty)")
        super().__init__(text)
        self.part = part


def log_tail(log: Path, lines: int = 12) -> str:
    """Return the last lines of a log file, indented; empty when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 16_384))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join("    " + line for line in text.splitlines()[-lines:])
