"""Services outside: an HTTP one with an OpenAPI document, an MCP one, and one nobody may reach."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import uvicorn
from mcp.server import MCPServer

__all__ = ["HttpService", "McpService", "Sink"]


def _text(description: str) -> dict[str, Any]:
    return {"operationId": description, "summary": f"{description} of the service"}


DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "service", "version": "1"},
    "paths": {
        "/forecast/{city}": {
            "get": {
                **_text("forecast"),
                "parameters": [
                    {"name": "city", "in": "path", "required": True, "schema": {"type": "string"}},
                    {
                        "name": "days",
                        "in": "query",
                        "schema": {"type": "integer", "minimum": 1, "maximum": 7},
                    },
                ],
            }
        },
        "/orders": {
            "post": {
                **_text("order"),
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Order"}}
                    },
                },
            }
        },
        **{
            f"/{name}": {"get": _text(name)}
            for name in (
                "big",
                "long",
                "broken",
                "slow",
                "away",
                "flaky",
                "down",
                "echo",
                "image",
                "five",
            )
        },
    },
    "components": {
        "schemas": {
            "Order": {
                "type": "object",
                "properties": {
                    "item": {"type": "string", "pattern": "^[a-z]+$"},
                    "count": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["item", "count"],
            }
        }
    },
}


@dataclass
class HttpService:
    """An HTTP service in a thread.

    Attributes:
        requests: Method, path and headers of what came.
        orders: Body by idempotency key: what was done, once a key.
        hold: While set, an order is done and its answer kept back.
    """

    port: int
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    orders: dict[str, Any] = field(default_factory=dict)
    hold: threading.Event = field(default_factory=threading.Event)
    sink_url: str = "http://127.0.0.1:1/"
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.answer(self)

            def do_POST(self) -> None:
                service.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def seen(self, path: str) -> list[dict[str, str]]:
        """Headers of the requests for a path."""
        return [headers for _, asked, headers in self.requests if asked.startswith(path)]

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        split = urlsplit(request.path)
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((request.command, request.path, headers))
        body = request.rfile.read(int(headers.get("content-length", 0)))
        name = split.path.strip("/").partition("/")[0]
        match name:
            case "forecast":
                city = unquote(split.path.removeprefix("/forecast/"))
                days = parse_qs(split.query).get("days", ["1"])[0]
                self._send(request, json.dumps({"city": city, "days": days, "sky": "blue"}))
            case "orders":
                key = headers["idempotency-key"]
                self.orders.setdefault(key, json.loads(body))
                while self.hold.is_set():
                    time.sleep(0.05)
                self._send(request, json.dumps({"order": len(self.orders)}))
            case "openapi.json":
                self._send(request, json.dumps({**DOCUMENT, "servers": [{"url": self.url}]}))
            case "big":
                self._big(request)
            case "long":
                self._send(request, "long " * 2_000, kind="text/plain")
            case "five":
                self._send(request, "five " * 1_000_000, kind="text/plain")
            case "broken":
                self._send(request, '{"half": ')
            case "slow":
                time.sleep(4)
                self._send(request, "{}")
            case "away":
                self._send(request, "", status=302, location=self.sink_url)
            case "flaky":
                first = len(self.seen("/flaky")) % 2 == 1
                self._send(request, '"at last"', status=503 if first else 200)
            case "down":
                self._send(request, "secret of the server", status=500)
            case "echo":
                self._send(request, json.dumps(headers))
            case "image":
                self._send(request, "\x00\x01", kind="image/png")
            case _:
                self._send(request, "{}", status=404)

    def _send(
        self,
        request: BaseHTTPRequestHandler,
        text: str,
        *,
        status: int = 200,
        kind: str = "application/json",
        location: str | None = None,
    ) -> None:
        data = text.encode()
        try:
            request.send_response(status)
            request.send_header("Content-Type", kind)
            request.send_header("Content-Length", str(len(data)))
            if location:
                request.send_header("Location", location)
            request.end_headers()
            request.wfile.write(data)
        except OSError:
            return

    def _big(self, request: BaseHTTPRequestHandler) -> None:
        try:
            request.send_response(200)
            request.send_header("Content-Type", "text/plain")
            request.end_headers()
            for _ in range(50):
                request.wfile.write(b"x" * 1_000_000)
        except OSError:
            return


@dataclass
class McpService:
    """An MCP server in a thread; `description` of its tool can be changed while it runs."""

    port: int
    description: str = "adds two numbers"
    keys: list[Any] = field(default_factory=list)
    _server: uvicorn.Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        server = MCPServer("sums")

        @server.tool(description=self.description)
        def add(a: int, b: int) -> str:
            return f"the sum is {a + b}"

        @server.tool(description="always fails")
        def fail() -> str:
            raise ValueError("no luck")

        app = server.streamable_http_app()
        config = uvicorn.Config(app, "127.0.0.1", self.port, log_level="error")
        self._server = uvicorn.Server(config)
        threading.Thread(target=self._server.run, daemon=True).start()
        while not self._server.started:
            time.sleep(0.02)

    def stop(self) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._server.force_exit = True
        while self._server.servers and any(each.is_serving() for each in self._server.servers):
            time.sleep(0.02)


@dataclass
class Sink:
    """A server on loopback that nothing may reach; `connections` counts who did."""

    connections: int = 0
    port: int = 0
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def setup(self) -> None:
                sink.connections += 1
                super().setup()

            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
