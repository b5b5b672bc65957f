"""A Temporal server of their own, and a place where this process's spans arrive."""

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from observability.tracing import Tracing, setup_tracing
from settings import Settings

Spans = Callable[[str], list[ReadableSpan]]


@pytest.fixture(scope="session")
def tracing() -> Tracing:
    """The tracing of this process, as an entry point sets it up."""
    return setup_tracing("overline-test", Settings(otlp_endpoint=None))


@pytest.fixture(scope="session")
def exported(tracing: Tracing) -> Spans:
    """Spans that left the process for a trace, by start."""
    exporter = InMemorySpanExporter()
    tracing.add_exporter(exporter, delay_s=0.2)

    def of(trace_id: str) -> list[ReadableSpan]:
        assert tracing.flush()
        found = [
            span
            for span in exporter.get_finished_spans()
            if span.context.trace_id == int(trace_id, 16)
        ]
        return sorted(found, key=lambda span: span.start_time)

    return of


@pytest_asyncio.fixture(scope="session")
async def temporal(
    tracing: Tracing, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Client]:
    """A client, with the plugin, of a Temporal server that ends with the session."""
    folder = tmp_path_factory.mktemp("temporal")
    environment = await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(Path(sys.executable).parent / "temporal"),
        dev_server_database_filename=str(folder / "temporal.db"),
        dev_server_log_level="error",
        ui=False,
    )
    try:
        yield await Client.connect(
            environment.client.service_client.config.target_host,
            plugins=[tracing.temporal_plugin()],
        )
    finally:
        await environment.shutdown()
