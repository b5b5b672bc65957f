"""Which web pages may read the codec's answers: Temporal's Web UI, and no other."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CodecOrigin"]

_PREFLIGHT = {
    "Access-Control-Allow-Methods": "POST, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Namespace",
    "Access-Control-Max-Age": "600",
}


class CodecOrigin:
    """ASGI middleware: CORS headers on everything under `/codec/`, refusals included.

    Args:
        app: The application inside.
        ui_url: URL of the Web UI; its origin is allowed, compared exactly.
    """

    def __init__(self, app: ASGIApp, ui_url: str) -> None:
        self._app = app
        parts = urlsplit(ui_url)
        self._allowed = f"{parts.scheme}://{parts.netloc}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or not scope["path"].startswith("/codec/"):
            await self._app(scope, receive, send)
            return
        allowed = Headers(scope=scope).get("origin") == self._allowed

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Vary"] = "Origin"
                if allowed:
                    headers["Access-Control-Allow-Origin"] = self._allowed
            await send(message)

        if scope["method"] == "OPTIONS":
            preflight = Response(status_code=204, headers=_PREFLIGHT if allowed else None)
            await preflight(scope, receive, send_marked)
        else:
            await self._app(scope, receive, send_marked)
