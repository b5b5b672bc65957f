"""Metrics: names with units, bounded labels, one rendering."""

import socket
import urllib.request
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int = 412
    cached_tokens: int = 300
    completion_tokens: int = 31


@dataclass(frozen=True)
class Times:
    first_token_ms: float = 200.0
    total_ms: float = 900.0


@dataclass(frozen=True)
class Charge:
    billed_usd: Decimal = Decimal(0)
    waste_usd: Decimal = Decimal(0)
    saved_usd: Decimal = Decimal(0)
    already_settled: bool = False


def test_a_generation_is_counted_with_its_tokens_and_times(grown):
    metrics.record_generation("m1", Usage(), Times(), resumed_tokens=96)
    assert grown("overline_model_calls_total", model="m1", outcome="succeeded") == 1
    assert grown("overline_tokens_total", model="m1", bucket="uncached_input") == 112
    assert grown("overline_tokens_total", model="m1", bucket="cached_input") == 300
    assert grown("overline_tokens_total", model="m1", bucket="output") == 31
    assert grown("overline_time_to_first_token_seconds_sum", model="m1") == pytest.approx(0.2)
    count = "overline_model_call_duration_seconds_count"
    assert grown(count, model="m1", outcome="succeeded") == 1
    assert grown("overline_resumes_total", model="m1") == 1
    assert grown("overline_resumed_tokens_total", model="m1") == 96


def test_unknown_times_and_no_resume_are_not_counted_as_zero(grown):
    metrics.record_generation("m1", Usage(), Times(first_token_ms=0.0, total_ms=0.0))
    assert grown("overline_time_to_first_token_seconds_count", model="m1") == 0
    assert grown("overline_resumes_total", model="m1") == 0


def test_an_interrupted_attempt_and_its_waste(grown):
    metrics.record_interruption("m1", "cancelled", 1.5)
    metrics.record_waste("fallback", 40)
    metrics.record_waste("fallback", 0)
    assert grown("overline_model_calls_total", model="m1", outcome="cancelled") == 1
    total = "overline_model_call_duration_seconds_sum"
    assert grown(total, model="m1", outcome="cancelled") == pytest.approx(1.5)
    assert grown("overline_wasted_tokens_total", cause="fallback") == 40


def test_a_settlement_counts_money_and_the_call_only_if_nothing_else_did(grown):
    metrics.record_settlement("m1", "succeeded", Charge(Decimal("0.000012"), Decimal("0.25")))
    assert grown("overline_cost_usd_total", model="m1", kind="billed") == pytest.approx(0.000012)
    assert grown("overline_cost_usd_total", model="m1", kind="waste") == pytest.approx(0.25)
    assert grown("overline_model_calls_total", model="m1", outcome="succeeded") == 0
    metrics.record_settlement("m1", "cached", Charge(saved_usd=Decimal("0.5")))
    assert grown("overline_cost_usd_total", model="m1", kind="saved") == pytest.approx(0.5)
    assert grown("overline_model_calls_total", model="m1", outcome="cached") == 1


def test_a_settlement_that_is_repeated_counts_once(grown):
    for repeated in (False, True):
        metrics.record_settlement("m1", "cached", Charge(Decimal(1), already_settled=repeated))
    assert grown("overline_cost_usd_total", model="m1", kind="billed") == pytest.approx(1)
    assert grown("overline_model_calls_total", model="m1", outcome="cached") == 1


def test_the_rest(grown):
    metrics.record_cache(True)
    metrics.record_cache(False)
    metrics.record_refusal("budget_exceeded", "team")
    metrics.record_refusal("key_expired")
    metrics.record_round_trips(3)
    metrics.record_task("succeeded")
    with metrics.sse_reader():
        assert grown("overline_sse_readers") == 1
    assert grown("overline_sse_readers") == 0
    assert grown("overline_cache_lookups_total", result="hit") == 1
    assert grown("overline_cache_lookups_total", result="miss") == 1
    assert grown("overline_hold_refusals_total", code="budget_exceeded", scope="team") == 1
    assert grown("overline_hold_refusals_total", code="key_expired", scope="none") == 1
    assert grown("overline_database_round_trips_total") == 3
    assert grown("overline_tasks_total", status="succeeded") == 1


def test_labels_stay_bounded_whatever_is_passed():
    for number in range(1000):
        metrics.record_generation(f"flood-{number}", Usage(), Times())
        metrics.record_interruption(f"flood-{number}", f"odd-{number}")
        metrics.record_refusal(f"c{number}", f"s{number}")
        metrics.record_waste(f"w{number}", 1)
        metrics.record_task(f"t{number}")
    values: dict[tuple[str, str], set[str]] = {}
    for family in metrics.REGISTRY.collect():
        for sample in family.samples:
            if sample.name.startswith("overline_"):
                for label, word in sample.labels.items():
                    assert label not in FORBIDDEN_LABELS
                    if label == "route" and sample.name.startswith("overline_http_"):
                        # As many as the application has, whoever calls; other tests called it.
                        continue
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
    # The API counts what only it sees, in the same registry, when it is imported.
    assert len(ours) >= 13
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
