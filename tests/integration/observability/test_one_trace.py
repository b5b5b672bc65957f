"""One trace from the request to the engine, without duplicates, whatever becomes of workers."""

import asyncio
import contextlib
import gc
import uuid
from collections import Counter
from dataclasses import dataclass, field

import grpc
import httpx2
import pytest
import pytest_asyncio
import uvicorn
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from temporalio import activity
from temporalio.worker import Worker

from observability import genai
from observability.http import fastapi_telemetry
from observability.spans import current_trace_id, identify, trace_carrier, tracer
from tests.integration.observability.traced_workflows import Traced, Waiting

QUEUE = "observability"


@dataclass
class Engine:
    """A gRPC server that notes who called."""

    address: str
    called_by: list[str] = field(default_factory=list)


@pytest_asyncio.fixture(scope="session")
async def engine():
    def answer(request, context):
        engine.called_by.append(dict(context.invocation_metadata()).get("traceparent", ""))
        return request

    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler(
        "engine", {"Infer": grpc.unary_unary_rpc_method_handler(answer)}
    )
    server.add_generic_rpc_handlers((handler,))
    engine = Engine(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    await server.start()
    yield engine
    await server.stop(None)


@pytest.fixture
def call_engine(engine):
    @activity.defn(name="call_engine")
    async def call_engine(name: str) -> str:
        info = activity.info()
        with tracer("engine").start_as_current_span("generate"):
            identify(step=1, attempt=info.attempt)
            if info.attempt == 1 and name.startswith("shaky"):
                raise ConnectionError("the replica is gone")
            with genai.model_call_span("scripted", server=engine.address):
                async with grpc.aio.insecure_channel(engine.address) as channel:
                    call = channel.unary_unary("/engine/Infer")
                    await call(name.encode(), metadata=tuple(trace_carrier().items()), timeout=5)
        return current_trace_id() or ""

    return call_engine


@contextlib.asynccontextmanager
async def serving(app: FastAPI):
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    running = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(10):
            while not server.started:
                await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client
    finally:
        server.should_exit = True
        await running


def worker(temporal, call_engine, **options) -> Worker:
    return Worker(
        temporal,
        task_queue=QUEUE,
        workflows=[Traced, Waiting],
        activities=[call_engine],
        **options,
    )


def tree(spans):
    """Names from the root down, children by start: independent of times and ids."""
    children: dict[int | None, list] = {}
    for span in spans:
        children.setdefault(span.parent.span_id if span.parent else None, []).append(span)

    def below(span):
        return (span.name, [below(child) for child in children.get(span.context.span_id, ())])

    return [below(span) for span in children.get(None, ())]


def repeated(spans):
    counts = Counter(span.context.span_id for span in spans)
    return {span.name for span in spans if counts[span.context.span_id] > 1}


ACTIVITY = (
    "StartActivity:call_engine",
    [
        ("RunActivity:call_engine", [("generate", [])]),
        ("RunActivity:call_engine", [("generate", [("text_completion scripted", [])])]),
    ],
)


@pytest.mark.parametrize("cached", [1000, 0])
async def test_one_trace_from_the_request_to_the_engine(
    temporal, engine, call_engine, exported, cached
):
    app = FastAPI(telemetry=fastapi_telemetry())

    @app.post("/v1/tasks")
    async def submit() -> dict[str, str | None]:
        # The activities' results are the trace ids that they saw.
        seen = await temporal.execute_workflow(
            Traced.run, "shaky", id=f"task-{uuid.uuid4()}", task_queue=QUEUE
        )
        (inside,) = set(seen)
        return {"outside": current_trace_id(), "inside": inside}

    engine.called_by.clear()
    async with worker(temporal, call_engine, max_cached_workflows=cached), serving(app) as client:
        answer = (await client.post("/v1/tasks")).raise_for_status().json()

    trace_id = answer["outside"]
    assert answer["inside"] == trace_id
    spans = exported(trace_id)
    assert not repeated(spans)
    run = ("RunWorkflow:Traced", [("outer", [ACTIVITY, ACTIVITY])])
    assert tree(spans) == [("POST /v1/tasks", [("StartWorkflow:Traced", [run])])]

    by_name: dict[str, list] = {}
    for span in spans:
        by_name.setdefault(span.name, []).append(span)
    (request,) = by_name["POST /v1/tasks"]
    assert request.kind is SpanKind.SERVER
    assert request.attributes["http.response.status_code"] == 200
    attempts = by_name["RunActivity:call_engine"]
    assert [span.attributes["overline.attempt"] for span in attempts] == [1, 2, 1, 2]
    assert all(span.attributes["overline.queue_wait_ms"] >= 0 for span in attempts)
    failed = [span.status.status_code is StatusCode.ERROR for span in attempts]
    assert failed == [True, False, True, False]
    # What the engine was given is the span of the call itself.
    calls = by_name["text_completion scripted"]
    assert engine.called_by == [
        f"00-{trace_id}-{trace.format_span_id(span.context.span_id)}-01" for span in calls
    ]


async def test_a_stopped_workers_garbage_ends_no_span_twice(
    temporal, tracing, call_engine, exported
):
    unguarded = InMemorySpanExporter()
    tracing.provider.add_span_processor(BatchSpanProcessor(unguarded))
    with tracer("test").start_as_current_span("client") as client_span:
        trace_id = trace.format_trace_id(client_span.get_span_context().trace_id)
        first = worker(temporal, call_engine)
        async with first:
            handle = await temporal.start_workflow(
                Waiting.run, "steady", id=f"waiting-{uuid.uuid4()}", task_queue=QUEUE
            )
            async with asyncio.timeout(20):
                while "generate" not in {span.name for span in exported(trace_id)}:
                    await asyncio.sleep(0.05)
            # Let the workflow take the activity's result and come to its wait.
            await asyncio.sleep(0.3)
        del first
        gc.collect()
        async with worker(temporal, call_engine):
            await handle.signal(Waiting.go)
            assert await handle.result() == trace_id

    spans = exported(trace_id)
    # Without the guard this very run has duplicates: the test would notice its absence.
    tracing.provider.force_flush()
    all_spans = [
        s for s in unguarded.get_finished_spans() if s.context.trace_id == int(trace_id, 16)
    ]
    assert {"outer", "RunWorkflow:Waiting"} <= repeated(all_spans)

    assert not repeated(spans)
    assert {s.context.span_id for s in spans} == {s.context.span_id for s in all_spans}
    attempt = ("RunActivity:call_engine", [("generate", [("text_completion scripted", [])])])
    run = (
        "RunWorkflow:Waiting",
        [("outer", [("StartActivity:call_engine", [attempt])])],
    )
    (client,) = tree(spans)
    assert ("StartWorkflow:Waiting", [run]) in client[1]
    # The one that stayed is the whole one: it ends after the signal was sent.
    by_name = {span.name: span for span in spans}
    assert by_name["outer"].end_time > by_name["SignalWorkflow:go"].start_time
