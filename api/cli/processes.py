"""`overline serve` and `overline worker`: one of our processes, in the foreground."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from api.cli.render import print_json
from settings import load_settings

__all__ = ["serve", "worker"]

Json = Annotated[
    bool, typer.Option("--json", help="First print one JSON object that says what starts.")
]


def serve(as_json: Json = False) -> None:
    """Run the API in the foreground, on the host and port of the settings."""
    from deploy.api import main

    settings = load_settings()
    if as_json:
        print_json({"process": "api", "host": settings.api_host, "port": settings.api_port})
        sys.stdout.flush()
    raise typer.Exit(main())


def worker(as_json: Json = False) -> None:
    """Run one worker in the foreground, against the addresses of the settings."""
    from deploy.worker import main

    settings = load_settings()
    if as_json:
        print_json(
            {
                "process": "worker",
                "temporal": settings.temporal_address,
                "task_queue": settings.task_queue,
            }
        )
        sys.stdout.flush()
    main()
