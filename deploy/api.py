"""The API process: the REST surface, and the fast lane that makes its calls.

python -m deploy.api      (or: overline serve)

The API knows of no activities and the lane of no HTTP; they meet here.
"""

from __future__ import annotations

import sys

from activities.dependencies import Dependencies
from activities.lane.lane import FastLane
from api.server import serve
from settings import Settings
from store.database import Database

__all__ = ["lane", "main"]


def lane(settings: Settings, db: Database) -> FastLane:
    """Return the lane of an API process, on the process's own database connections."""
    return FastLane(Dependencies(settings, db))


def main() -> int:
    """Serve until SIGTERM or SIGINT; return the exit status."""
    return serve(lane)


if __name__ == "__main__":
    sys.exit(main())
