"""The application factory.

Edge          request id, log line, metric, last net        api/edge.py
CodecOrigin   the one web page that may read payloads       api/codec_origin.py
BodyGuard     what no route should ever see                 api/body_guard.py
routes        one module a resource                         api/routes/
Parts         what stands behind, opened when it is there   api/parts.py
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from temporalio.client import Plugin

from api.batching import sweep_batches
from api.body_guard import BodyGuard
from api.call_recovery import sweep_orphans
from api.codec_origin import CodecOrigin
from api.deciding import sweep_untold
from api.edge import Edge
from api.ended_outside import close_ended_outside
from api.error_handlers import add_error_handlers
from api.housekeeping import keep_house
from api.lane import MakeLane
from api.messaging import sweep_unsent_messages
from api.openapi import describe, version
from api.parts import Parts
from api.routes import (
    agents,
    approvals,
    audit,
    batches,
    blobs,
    budgets,
    codec,
    collections,
    docs,
    events,
    files,
    health,
    identity,
    limits,
    maps,
    messages,
    openai_surface,
    policy,
    schedules,
    sessions,
    spend,
    steering,
    tasks,
    tools,
    webhooks,
)
from api.sessions import sweep_unsent_sessions
from api.steering import sweep_unsent, sweep_waiting
from api.submission import sweep_unstarted
from api.webhooks import sweep_webhooks
from observability.http import fastapi_telemetry
from settings import Settings, load_settings

__all__ = ["create_app"]

_DESCRIPTION = """\
The harness above the inference line: submit an agent task, watch its tokens, read what every step
did and cost.

Money is in USD, as decimal strings. Times are RFC 3339, in UTC. Ids are UUIDv7 and sort by time.
Every error is an RFC 9457 problem document with the id of the request. Every POST takes an
`Idempotency-Key` where it says so: a repeated request gets the first one's answer.
"""

_TAGS = [
    {"name": "tasks", "description": "Submit, read, watch and cancel agent tasks."},
    {"name": "maps", "description": "One task for each of many inputs."},
    {"name": "openai", "description": "OpenAI's API: SDKs work with only `base_url` changed."},
    {"name": "agents", "description": "What tasks may name instead of saying it."},
    {"name": "tools", "description": "What agents can call besides the built-in tools."},
    {"name": "collections", "description": "What agents can retrieve from."},
    {"name": "sessions", "description": "Conversations, each turn of which is a task."},
    {"name": "schedules", "description": "Tasks that are asked again and again."},
    {"name": "budgets", "description": "What may be spent, and what is left of it."},
    {"name": "limits", "description": "How many requests, tokens and calls at once."},
    {"name": "policy", "description": "What texts are screened by."},
    {"name": "spend", "description": "What was spent, by whom, on what."},
    {"name": "identity", "description": "Teams, keys, and who changed what."},
    {"name": "codec", "description": "Decryption of Temporal payloads for those who may read."},
    {"name": "health", "description": "Whether the service and what it stands on work."},
]


def create_app(
    settings: Settings | None = None,
    *,
    temporal_plugins: Sequence[Plugin] = (),
    make_lane: MakeLane | None = None,
) -> FastAPI:
    """Return the API.

    Args:
        settings: Settings of the process; by default those of the environment.
        temporal_plugins: Plugins of the Temporal client, such as tracing.
        make_lane: Makes what makes calls; without it, the OpenAI-compatible routes answer 503.
    """
    effective = settings or load_settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        parts: Parts = app.state.parts
        await parts.start()
        parts.run_in_background(sweep_unstarted(parts))
        parts.run_in_background(sweep_unsent(parts))
        parts.run_in_background(sweep_waiting(parts))
        parts.run_in_background(sweep_untold(parts))
        parts.run_in_background(sweep_unsent_messages(parts))
        parts.run_in_background(sweep_unsent_sessions(parts))
        parts.run_in_background(close_ended_outside(parts))
        parts.run_in_background(sweep_orphans(parts))
        parts.run_in_background(sweep_webhooks(parts))
        parts.run_in_background(sweep_batches(parts))
        parts.run_in_background(keep_house(parts))
        try:
            yield
        finally:
            await parts.stop()

    app = FastAPI(
        title="Overline",
        version=version(),
        summary="Durable orchestration of agent tasks.",
        description=_DESCRIPTION,
        openapi_tags=_TAGS,
        lifespan=lifespan,
        # The built-in documentation pages load scripts from a content network.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=fastapi_telemetry(),
    )
    app.state.parts = Parts(effective, plugins=temporal_plugins, make_lane=make_lane)
    for module in (
        tasks,
        openai_surface,
        files,
        batches,
        maps,
        approvals,
        webhooks,
        blobs,
        tools,
        steering,
        messages,
        events,
        agents,
        collections,
        schedules,
        sessions,
        budgets,
        limits,
        policy,
        spend,
        identity,
        audit,
        codec,
        health,
        docs,
    ):
        app.include_router(module.router)
    add_error_handlers(app)
    # The last one added is the outermost.
    app.add_middleware(
        BodyGuard,
        max_bytes=effective.max_request_bytes,
        larger={"/v1/maps": effective.max_map_bytes},
        streamed=("/v1/files",),
    )
    app.add_middleware(CodecOrigin, ui_url=effective.temporal_ui_url)
    app.add_middleware(Edge)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = describe(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app
