"""Export over OTLP to a real HTTP listener; set-up, flush and stop in a process of their own."""

import gzip
import logging
import os
import subprocess
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from observability.tracing import Tracing
from settings import Settings

ROOT = Path(__file__).parents[3]


class Collector(ThreadingHTTPServer):
    """Takes spans like a collector; may refuse, or never answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []
        self.status = 200
        self.hang = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self):
        return [
            span
            for _, request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        encoding = self.headers.get("content-encoding")
        if encoding == "gzip":
            body = gzip.decompress(body)
        elif encoding == "deflate":
            body = zlib.decompress(body)
        if self.server.hang.is_set():
            time.sleep(30)
        self.server.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def collector():
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def a_span(tracing: Tracing, text: str = "fine") -> None:
    tracer = tracing.provider.get_tracer("test")
    with tracer.start_as_current_span("work", attributes={"note": text}) as span:
        span.record_exception(ConnectionError(text))


def test_spans_arrive_with_their_service_and_without_secrets(collector):
    tracing = Tracing("overline-worker", Settings(otlp_endpoint=collector.url + "/"))
    a_span(
        tracing, "postgresql://app:canary-password@db/o refused ol_" + "ab" * 16 + "_" + "S" * 43
    )
    assert tracing.flush()
    assert tracing.shutdown()
    ((path, request),) = collector.requests
    assert path == "/v1/traces"
    resource = {
        item.key: item.value.string_value for item in request.resource_spans[0].resource.attributes
    }
    assert resource["service.name"] == "overline-worker"
    (span,) = collector.spans()
    assert span.name == "work"
    text = str(span)
    assert "canary-password" not in text
    assert "S" * 43 not in text
    # Attribute, message and stack of the exception.
    assert text.count("postgresql://app:[redacted]@db/o") >= 3


def test_a_refusal_is_noticed(collector, caplog):
    collector.status = 400
    tracing = Tracing("x", Settings(otlp_endpoint=collector.url))
    a_span(tracing)
    with caplog.at_level(logging.WARNING, logger="observability.tracing"):
        assert tracing.flush() is False
    assert "could not be flushed" in caplog.text
    collector.status = 200
    a_span(tracing)
    assert tracing.flush() is True
    assert tracing.shutdown() is True


def test_a_collector_that_does_not_answer_costs_a_bounded_time(collector, caplog):
    collector.hang.set()
    tracing = Tracing("x", Settings(otlp_endpoint=collector.url))
    a_span(tracing)
    begun = time.monotonic()
    assert tracing.shutdown(timeout_s=1.0) is False
    assert time.monotonic() - begun < 3.0
    assert "could not be flushed" in caplog.text
    assert tracing.shutdown() is True


def in_a_process_of_its_own(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_set_up_once_with_ids_and_without_export():
    done = in_a_process_of_its_own(
        """
from observability.spans import current_trace_id, trace_carrier, tracer
assert current_trace_id() is None and trace_carrier() == {}
with tracer("x").start_as_current_span("before set-up"):
    assert current_trace_id() is None
from observability.tracing import setup_tracing
from settings import Settings
settings = Settings(otlp_endpoint=None)
with setup_tracing("overline-api", settings) as tracing:
    assert setup_tracing("other", settings) is tracing
    with tracer("x").start_as_current_span("s") as span:
        assert len(current_trace_id()) == 32 and not span.is_recording()
        assert trace_carrier()["traceparent"].split("-")[1] == current_trace_id()
print("done")
"""
    )
    assert done.stdout == "done\n", done.stderr


def test_a_provider_of_other_code_is_an_error():
    done = in_a_process_of_its_own(
        """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
from observability.tracing import setup_tracing
from settings import Settings
setup_tracing("overline-api", Settings())
"""
    )
    assert "RuntimeError: a tracer provider was set before Overline's" in done.stderr


def test_an_unreachable_collector_does_not_hold_a_process_up():
    begun = time.monotonic()
    done = in_a_process_of_its_own(
        """
from observability.logs import setup_logging
from observability.spans import tracer
from observability.tracing import setup_tracing
from settings import Settings
settings = Settings(otlp_endpoint="http://127.0.0.1:9")
setup_logging(settings, "overline-worker")
with setup_tracing("overline-worker", settings) as tracing:
    with tracer("x").start_as_current_span("s"):
        pass
    tracing.shutdown(timeout_s=1.0)
"""
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begun < 20
    assert "could not be flushed" in done.stderr
    assert all(line.startswith("{") for line in done.stderr.splitlines())


def test_temporals_core_logs_as_json():
    done = in_a_process_of_its_own(
        """
import asyncio, logging, os, sys
from pathlib import Path
from observability.logs import setup_logging
from observability.temporal import install_runtime
from settings import Settings
from temporalio import activity
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

setup_logging(Settings(), "overline-worker")
install_runtime()
warned = asyncio.Event()

class Watch(logging.Handler):
    # Last of the handlers of the root: what it hears of has been written.
    def emit(self, record):
        if record.name == "temporalio.core":
            loop.call_soon_threadsafe(warned.set)

@activity.defn
async def nothing() -> None: ...

async def main():
    global loop
    loop = asyncio.get_running_loop()
    binary = Path(sys.executable).parent / "temporal"
    environment = await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(binary), ui=False, dev_server_log_level="never"
    )
    logging.getLogger().addHandler(Watch())
    worker = Worker(environment.client, task_queue="q", activities=[nothing])
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0.3)
    await environment.shutdown()
    await asyncio.wait_for(warned.wait(), 30)
    # The core has no server to say goodbye to.
    os._exit(0)

asyncio.run(main())
"""
    )
    assert done.returncode == 0, done.stderr
    # Stdout has the server's banner; a line of the core would be coloured text there.
    assert "WARN" not in done.stdout
    assert '"logger": "temporalio.core"' in done.stderr
    assert all(line.startswith("{") for line in done.stderr.splitlines()), done.stderr
