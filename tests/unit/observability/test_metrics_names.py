"""Metrics: names with units, bounded labels, one rendering."""

import socket
import urllib.request
from decimal import Decimal

import pytest
from prometheus_client.parser import text_string_to_metric_families

from observability import metrics

FORBIDDEN_LABELS = {"task", "task_id", "user", "key", "key_id", "organisation", "call_key", "step"}


def value(name, **labels):
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.fixture
def grown():
    """How much a sample grew since the test began."""
    before = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in metrics.REGISTRY.collect()
        for sample in family.samples
    }

    def growth(name, **labels):
        return value(name, **labels) - before.get((name, tuple(sorted(labels.items()))), 0.0)

    return growth


def test_a_call_is_counted_with_its_tokens_and_times(grown):
    metrics.call_finished(
        model="m1", outcome="succeeded", duration_s=0.9, first_token_s=0.2,
        uncached_input_tokens=112, cached_input_tokens=300, output_tokens=31,
    )  # fmt: skip
    assert grown("overline_model_calls_total", model="m1", outcome="succeeded") == 1
    assert grown("overline_tokens_total", model="m1", bucket="uncached_input") == 112
    assert grown("overline_tokens_total", model="m1", bucket="cached_input") == 300
    assert grown("overline_tokens_total", model="m1", bucket="output") == 31
    assert grown("overline_time_to_first_token_seconds_sum", model="m1") == pytest.approx(0.2)
    assert grown(
        "overline_model_call_duration_seconds_count", model="m1", outcome="succeeded"
    ) == 1  # fmt: skip


def test_a_cached_call_has_no_times(grown):
    metrics.call_finished(model="m1", outcome="cached")
    assert grown("overline_model_calls_total", model="m1", outcome="cached") == 1
    assert grown(
        "overline_model_call_duration_seconds_count", model="m1", outcome="cached"
    ) == 0  # fmt: skip


def test_money_waste_and_resumes(grown):
    metrics.cost_booked(model="m1", billed_usd=Decimal("0.000012"), saved_usd=Decimal("0.5"))
    metrics.call_resumed(model="m1", tokens=96)
    metrics.tokens_wasted(cause="fallback", tokens=40)
    metrics.tokens_wasted(cause="fallback", tokens=0)
    assert grown("overline_cost_usd_total", model="m1", kind="billed") == pytest.approx(0.000012)
    assert grown("overline_cost_usd_total", model="m1", kind="saved") == pytest.approx(0.5)
    assert grown("overline_cost_usd_total", model="m1", kind="waste") == 0
    assert grown("overline_resumes_total", model="m1") == 1
    assert grown("overline_resumed_tokens_total", model="m1") == 96
    assert grown("overline_wasted_tokens_total", cause="fallback") == 40


def test_the_rest(grown):
    metrics.cache_lookup(hit=True)
    metrics.cache_lookup(hit=False)
    metrics.hold_refused(code="budget_exceeded", scope="team")
    metrics.database_round_trips(3)
    metrics.task_finished("succeeded")
    with metrics.sse_reader():
        assert grown("overline_sse_readers") == 1
    assert grown("overline_sse_readers") == 0
    assert grown("overline_cache_lookups_total", result="hit") == 1
    assert grown("overline_cache_lookups_total", result="miss") == 1
    assert grown("overline_hold_refusals_total", code="budget_exceeded", scope="team") == 1
    assert grown("overline_database_round_trips_total") == 3
    assert grown("overline_tasks_total", status="succeeded") == 1


def test_labels_stay_bounded_whatever_is_passed():
    for number in range(1000):
        metrics.call_finished(model=f"flood-{number}", outcome=f"odd-{number}")
        metrics.hold_refused(code=f"c{number}", scope=f"s{number}")
        metrics.tokens_wasted(cause=f"w{number}", tokens=1)
        metrics.task_finished(f"t{number}")
    values: dict[tuple[str, str], set[str]] = {}
    for family in metrics.REGISTRY.collect():
        for sample in family.samples:
            if sample.name.startswith("overline_"):
                for label, word in sample.labels.items():
                    assert label not in FORBIDDEN_LABELS
                    values.setdefault((sample.name, label), set()).add(word)
    assert max(map(len, values.values())) <= metrics.MOST_MODELS + 1
    assert value("overline_model_calls_total", model="other", outcome="other") > 0


def test_names_carry_units_and_the_text_parses():
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    ours = [
        family
        for family in text_string_to_metric_families(body.decode())
        if family.name.startswith("overline_")
    ]
    assert len(ours) == 13
    for family in ours:
        assert family.documentation
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
    assert "openmetrics" in metrics.render("application/openmetrics-text; version=1.0.0")[1]


def test_a_worker_serves_its_metrics_and_survives_a_taken_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.listen()
        assert metrics.start_metrics_server(port) is False
    assert metrics.start_metrics_server(0) is False
    assert metrics.start_metrics_server(port) is True
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        assert b"overline_sse_readers" in answer.read()
