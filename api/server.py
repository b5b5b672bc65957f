"""The API under uvicorn, on the host and port of the settings; `deploy.api` starts it."""

from __future__ import annotations

import asyncio
from types import FrameType
from typing import Any

import uvicorn

from api.app import create_app
from api.lane import MakeLane
from api.parts import Parts
from observability.logs import setup_logging
from observability.tracing import setup_tracing
from settings import Settings, load_settings

__all__ = ["serve"]

_GRACE_S = 8


class Server(uvicorn.Server):
    """A server that ends open event streams first, so that stopping does not wait for readers."""

    def __init__(self, config: uvicorn.Config, parts: Parts) -> None:
        super().__init__(config)
        self._parts = parts

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Signal handler: readers come back elsewhere with their last event id."""
        self._parts.stopping.set()
        super().handle_exit(sig, frame)


def _config(app: Any, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.api_host,
        port=settings.api_port,
        log_level=settings.log_level.lower(),
        log_config=None,
        # The edge writes its own access log, with the route instead of the path.
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        timeout_keep_alive=75,
    )


def serve(make_lane: MakeLane | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status.

    Args:
        make_lane: Makes what makes calls in this process.
    """
    settings = load_settings()
    setup_logging(settings, "overline-api")
    with setup_tracing("overline-api", settings) as tracing:
        app = create_app(
            settings, temporal_plugins=[tracing.temporal_plugin()], make_lane=make_lane
        )
        config = _config(app, settings)
        server = Server(config, app.state.parts)
        # The loop that uvicorn would choose: uvloop, where it is installed.
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(server.serve())
    return 0 if server.started else 3
