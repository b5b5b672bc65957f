"""Somebody who wants to be told of tasks' ends: answers as its path says, and keeps what came."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

__all__ = ["Message", "Receiver"]


@dataclass(frozen=True)
class Message:
    """One POST that arrived."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        """What it says."""
        said: dict[str, Any] = json.loads(self.raw)
        return said


@dataclass
class Receiver:
    """An HTTP server in a thread.

    Attributes:
        port: Where it listens.
        messages: What came, in order.
        hold: While set, a POST to `/held…` is kept and not answered.
        elsewhere: Where `/away…` leads to.
    """

    port: int
    messages: list[Message] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    elsewhere: str = "http://127.0.0.1:1/"
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.receive(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self.hold.clear()
        self._server.shutdown()
        self._server.server_close()

    def url(self, path: str) -> str:
        """Address of a path."""
        return f"http://127.0.0.1:{self.port}/{path}"

    def of(self, task_id: str) -> list[Message]:
        """What came about a task."""
        return self.about("task_id", task_id)

    def about(self, name: str, value: str) -> list[Message]:
        """What came about something."""
        return [each for each in self.messages if each.body["data"].get(name) == value]

    def receive(self, request: BaseHTTPRequestHandler) -> None:
        """Keep a message and answer it."""
        raw = request.rfile.read(int(request.headers["content-length"]))
        headers = {name.lower(): value for name, value in request.headers.items()}
        message = Message(request.path, headers, raw)
        self.messages.append(message)
        earlier = len(self.of(message.body["data"].get("task_id"))) - 1
        path, extra = request.path.strip("/"), {}
        if path.startswith("held"):
            while self.hold.is_set():
                time.sleep(0.02)
        status = 204
        if path.startswith("third"):
            status = 204 if earlier >= 2 else 500
        elif path.startswith("gone"):
            status = 410
        elif path.startswith("away"):
            status, extra = 302, {"Location": self.elsewhere}
        elif path.startswith("later"):
            status = 204 if earlier else 429
            extra = {"Retry-After": "3"}
        try:
            request.send_response(status)
            for name, value in extra.items():
                request.send_header(name, value)
            request.send_header("Content-Length", "0")
            request.end_headers()
        except OSError:
            return
