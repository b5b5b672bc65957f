"""Exchanges with Postgres: names for people, counts, and nothing of what was sent."""

import psycopg
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from observability import database, metrics


@pytest.fixture
def spans(monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(database.trace, "get_tracer", provider.get_tracer)
    return exporter.get_finished_spans


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("select * from admit(%s, %s, %s)", "admit"),
        ("select overline.settle(%s)", "overline.settle"),
        ("SELECT * FROM\n  append_chunk (%(key)s)", "append_chunk"),
        ("select id, status from tasks where id = %s", "select tasks"),
        ("select count(*) from model_calls", "select model_calls"),
        ("insert into documents (id) values (%s) on conflict do nothing", "insert documents"),
        ("update tasks set status = %s", "update tasks"),
        ("delete from cache_entries where key = 'my diary'", "delete cache_entries"),
        ("", "statement"),
    ],
)
def test_a_statement_has_a_name(sql, name):
    assert database.statement_name(sql) == name


def test_an_exchange_is_a_span_and_a_count(spans):
    name = "overline_database_round_trips_total"
    before = metrics.REGISTRY.get_sample_value(name)
    with database.database_exchange("select * from admit(%s)", round_trips=2):
        pass
    (span,) = spans()
    assert span.name == "postgres admit"
    assert dict(span.attributes) == {"db.system.name": "postgresql", "db.operation.name": "admit"}
    assert metrics.REGISTRY.get_sample_value(name) - before == 2


def test_a_failed_exchange_tells_its_code_and_quotes_nothing(spans):
    with (
        pytest.raises(psycopg.errors.UniqueViolation),
        database.database_exchange("insert into tasks values (%s)"),
    ):
        raise psycopg.errors.UniqueViolation("Key (k)=(my diary) already exists")
    (span,) = spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "23505"
    assert "diary" not in span.to_json()
