"""``python -m deploy.local.supervise FOLDER``: the supervisor of a detached stack."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

from deploy.local.errors import StackError
from deploy.local.home import Home
from deploy.local.plan import ALL_PARTS
from deploy.local.report import Event, FileReport, PlainReport, Report, Tee
from deploy.local.stack import Stack

__all__ = ["main", "run_until_signalled"]


async def run_until_signalled(stack: Stack) -> None:
    """Run a stack until SIGINT, SIGTERM or SIGHUP arrives.

    Raises:
        StackError: It did not come up.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    await stack.run(stop)


def main() -> int:
    """Supervise until told to stop; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=Path, help="file to which events are appended")
    parser.add_argument("--only", default=",".join(ALL_PARTS))
    chosen = parser.parse_args()
    home = Home.open(chosen.folder)
    told: list[Report] = [PlainReport(sys.stdout)]
    if chosen.events is not None:
        told.append(FileReport(chosen.events))
    report: Report = Tee(*told)
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(
                run_until_signalled(Stack(home, report, only=frozenset(chosen.only.split(","))))
            )
    except StackError as error:
        report(Event("stack", "failed", str(error), {"code": error.code, "exit": error.exit_code}))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
