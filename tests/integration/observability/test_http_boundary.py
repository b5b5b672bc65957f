"""What a caller says about traces is linked to and not obeyed, on a real server."""

import asyncio
import contextlib

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI
from opentelemetry import baggage, propagate, trace
from starlette.responses import StreamingResponse

from observability.http import fastapi_telemetry
from observability.spans import current_trace_id, trace_carrier, tracer

THEIR_TRACE = "0af7651916cd43dd8448eb211c80319c"
THEIR_SPAN = "b7ad6b7169203331"


@contextlib.asynccontextmanager
async def serving():
    app = FastAPI(telemetry=fastapi_telemetry())

    @app.get("/v1/tasks")
    @app.get("/healthz")
    @app.get("/codec/{token}/decode")
    async def look() -> dict[str, object]:
        with tracer("test").start_as_current_span("inner") as span:
            links = len(getattr(span, "links", ()))
            return {
                "trace_id": current_trace_id(),
                "recording": span.is_recording(),
                "baggage": dict(baggage.get_all()),
                "carrier": trace_carrier(),
                "inner_links": links,
            }

    @app.get("/v1/events")
    async def events() -> StreamingResponse:
        async def body():
            for _ in range(2):
                yield f"data: {current_trace_id()}\n\n"
                await asyncio.sleep(0.01)

        return StreamingResponse(body(), media_type="text/event-stream")

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    running = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(10):
            while not server.started:
                await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            yield client
    finally:
        server.should_exit = True
        await running


async def get(path, **headers):
    async with serving() as client:
        answer = await client.get(path, headers=headers)
    return answer.raise_for_status()


@pytest.mark.parametrize("flags", ["00", "01"])
async def test_a_callers_context_is_a_link_on_a_new_root(exported, flags):
    answer = await get(
        "/v1/tasks",
        traceparent=f"00-{THEIR_TRACE}-{THEIR_SPAN}-{flags}",
        tracestate="vendor=their-words",
        baggage="overline.team=red,prompt=their-words",
    )
    seen = answer.json()
    assert seen["trace_id"] != THEIR_TRACE
    assert seen["recording"] is True
    assert seen["baggage"] == {}
    assert set(seen["carrier"]) == {"traceparent"}
    assert seen["carrier"]["traceparent"].endswith("-01")
    assert seen["inner_links"] == 0

    request, inner = exported(seen["trace_id"])
    assert request.parent is None
    (link,) = request.links
    assert trace.format_trace_id(link.context.trace_id) == THEIR_TRACE
    assert trace.format_span_id(link.context.span_id) == THEIR_SPAN
    assert dict(link.attributes) == {"overline.link": "caller"}
    assert inner.parent.span_id == request.context.span_id
    assert "their-words" not in request.to_json() + inner.to_json()
    assert not exported(THEIR_TRACE)


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "nonsense",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-" + "a" * 5000,
    ],
)
async def test_a_malformed_context_is_no_link_and_no_error(exported, traceparent):
    seen = (await get("/v1/tasks", traceparent=traceparent)).json()
    request, _ = exported(seen["trace_id"])
    assert request.parent is None
    assert not request.links


async def test_two_requests_of_one_caller_are_two_traces():
    header = f"00-{THEIR_TRACE}-{THEIR_SPAN}-01"
    async with serving() as client:
        answers = [await client.get("/v1/tasks", headers={"traceparent": header}) for _ in "ab"]
    assert len({answer.json()["trace_id"] for answer in answers}) == 2


async def test_a_stream_is_one_trace_to_its_end(exported):
    answer = await get("/v1/events")
    first, second = (line[6:] for line in answer.text.splitlines() if line)
    assert first == second
    (request,) = exported(first)
    assert request.name == "GET /v1/events"
    assert request.end_time - request.start_time > 10_000_000


@pytest.mark.parametrize("path", ["/healthz", "/codec/secret-capability/decode"])
async def test_probes_and_paths_with_secrets_have_no_span(exported, path):
    seen = (await get(path, traceparent=f"00-{THEIR_TRACE}-{THEIR_SPAN}-01")).json()
    # The endpoint's own span is a root of its own, and nothing is around it.
    assert seen["trace_id"] != THEIR_TRACE
    assert [span.name for span in exported(seen["trace_id"])] == ["inner"]


def test_what_we_send_on_is_the_current_span_only(tracing):
    with tracer("test").start_as_current_span("out") as span:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        assert carrier == trace_carrier()
        assert span.get_span_context().trace_id == int(carrier["traceparent"].split("-")[1], 16)
