"""gen_ai names: those of the installed conventions; prompts only when asked for."""

import json

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, server_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.semconv.version import __version__ as conventions_version
from opentelemetry.trace import SpanKind, StatusCode

from observability import genai


@pytest.fixture
def spans(monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(genai.trace, "get_tracer", provider.get_tracer)
    return exporter.get_finished_spans


def test_every_name_is_one_of_the_conventions():
    assert genai.CONVENTIONS.endswith(conventions_version)
    known = {
        value
        for module in (gen_ai_attributes, gen_ai_metrics, server_attributes, error_attributes)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    ours = {
        value
        for name, value in vars(genai).items()
        if name.isupper() and isinstance(value, str) and value.startswith(("gen_ai.", "server."))
    }
    assert len(ours) > 20
    assert ours <= known
    deprecated = {"gen_ai.system", "gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens"}
    assert not ours & deprecated


def test_a_call_has_the_names_and_numbers(spans):
    with genai.model_call_span("smollm2", server="10.0.0.7:8001") as span:
        genai.set_request(
            span, model="smollm2", max_tokens=64, temperature=0.0, top_k=0, seed=7,
            output_type="json", conversation_id="t-1", resumed_tokens=96,
        )  # fmt: skip
        genai.set_response(
            span, model="smollm2", input_tokens=412, cached_tokens=300, output_tokens=31,
            finish_reason="stop", response_id="t-1:2#0@1", first_chunk_s=0.25, queue_ms=1.5,
        )  # fmt: skip
    (done,) = spans()
    assert done.name == "text_completion smollm2"
    assert done.kind is SpanKind.CLIENT
    assert dict(done.attributes) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "nvidia.triton",
        "gen_ai.request.model": "smollm2",
        "server.address": "10.0.0.7",
        "server.port": 8001,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stream": True,
        "gen_ai.output.type": "json",
        "gen_ai.conversation.id": "t-1",
        "overline.resumed_tokens": 96,
        "gen_ai.response.model": "smollm2",
        "gen_ai.response.id": "t-1:2#0@1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": 412,
        "gen_ai.usage.output_tokens": 31,
        "gen_ai.usage.cache_read.input_tokens": 300,
        "overline.engine.queue_ms": 1.5,
    }
    assert done.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("error", [ConnectionError("reset"), KeyboardInterrupt()])
def test_a_call_that_does_not_return_is_an_error(spans, error):
    def call():
        with genai.model_call_span("m") as span:
            genai.set_request(span, model="m", max_tokens=1)
            raise error

    with pytest.raises(type(error)):
        call()
    (done,) = spans()
    assert done.status.status_code is StatusCode.ERROR
    assert done.attributes["error.type"] == type(error).__name__


def test_a_code_tells_more_than_the_class(spans):
    def call():
        with genai.model_call_span("m") as span:
            genai.set_error(span, "bad_grammar")
            raise ValueError("…")

    with pytest.raises(ValueError, match="…"):
        call()
    (done,) = spans()
    assert done.attributes["error.type"] == "bad_grammar"


@pytest.mark.parametrize("asked", [False, True])
def test_content_gets_on_a_span_only_when_asked_for(spans, asked):
    with genai.model_call_span("m", "chat") as span:
        genai.set_content(
            span, trace_prompts=asked, messages=[("user", "dear diary")], answer="hm",
            finish_reason="length",
        )  # fmt: skip
    (done,) = spans()
    if not asked:
        assert "diary" not in done.to_json()
        assert not {"gen_ai.input.messages", "gen_ai.output.messages"} & set(done.attributes)
        return
    assert json.loads(done.attributes["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "dear diary"}]}
    ]
    assert json.loads(done.attributes["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": "hm"}],
            "finish_reason": "length",
        }
    ]
