"""The operator's file of upstreams, and the names that wildcards stand for."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from deploy.local.catalogue import with_upstreams
from deploy.local.errors import StackError
from deploy.upstreams import UpstreamFileError, UpstreamRows, read_upstreams
from store.catalogue import Catalogue, Price
from store.pricing import UnknownName, Unpriced, models_of, worst_case_usd

ENTRY: dict[str, Any] = {
    "name": "gpt-x",
    "base_url": "https://api.example/v1/",
    "context_window": 1000,
    "max_output_tokens": 100,
}


def rows(tmp_path: Path, *entries: dict[str, Any], **more: Any) -> UpstreamRows:
    file = tmp_path / "upstreams.yaml"
    file.write_text(json.dumps({"upstreams": [{**ENTRY, **entry} for entry in entries], **more}))
    return read_upstreams(file)


def catalogue_of(read: UpstreamRows) -> Catalogue:
    return Catalogue(
        {model.name: model for model in read.models},
        {deployment.id: deployment for deployment in read.deployments},
        {price.model: price for price in read.prices},
        {},
        "",
    )


def test_no_file_registers_nothing() -> None:
    assert read_upstreams(None) == UpstreamRows()


def test_what_the_file_says_becomes_rows(tmp_path: Path) -> None:
    file = tmp_path / "upstreams.yaml"
    file.write_text(
        """
        upstreams:
          - name: gpt-x
            base_url: [https://one.example/v1, https://two.example/v1]
            api_key: openai
            upstream_model: gpt-x-2026
            context_window: 128000
            max_output_tokens: 16384
            capabilities: [chat, tools]
            prices:
              - {from: 2026-01-01, input: 1.25, cached_input: 0.1, output: 10, reasoning: 12}
              - {from: 2026-06-01, input: 1, output: 8}
            options: {max_tokens_parameter: max_completion_tokens}
        """
    )
    read = read_upstreams(file)
    (deployment,) = read.deployments
    assert deployment.urls == ("https://one.example/v1", "https://two.example/v1")
    assert (deployment.engine, deployment.secret) == ("openai", "openai")
    assert deployment.engine_model("gpt-x") == "gpt-x-2026"
    assert deployment.options == {"max_tokens_parameter": "max_completion_tokens"}
    first, second = read.prices
    assert first == Price(
        "gpt-x",
        Decimal("1.25"),
        Decimal("0.1"),
        Decimal(10),
        datetime(2026, 1, 1, tzinfo=UTC),
        Decimal(12),
    )
    assert (second.cached_input_usd_per_million, second.reasoning_usd_per_million) == (1, None)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"base_url": "api.example"}, "http"),
        ({"base_url": "https://u:p@api.example"}, "user"),
        ({"base_url": "https://api.example?key=x"}, "query"),
        ({"base_url": []}, "base_url"),
        ({"name": "a*b"}, "name"),
        ({"name": "scripted"}, "serves itself"),
        ({"max_output_tokens": 2000}, "context_window"),
        ({"prices": {"input": 1}}, "output"),
        ({"prices": {"input": None, "output": 1}}, "input"),
        ({"prices": {"input": -1, "output": 1}}, "input"),
        ({"prices": {"input": "free", "output": 1}}, "input"),
        ({"upstream_model": "a/*"}, "upstream_model"),
        ({"options": {"colour": "red"}}, "colour"),
        ({"apikey": "x"}, "apikey"),
        ({"capabilities": ["dance"]}, "capabilities"),
    ],
)
def test_a_file_that_cannot_be_used_says_where(
    tmp_path: Path, wrong: dict[str, Any], told: str
) -> None:
    with pytest.raises(UpstreamFileError, match=told):
        rows(tmp_path, wrong)


def test_a_name_is_given_once(tmp_path: Path) -> None:
    with pytest.raises(UpstreamFileError, match="twice"):
        rows(tmp_path, {}, {})


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for text in (": :", "[1]", "upstreams: 3"):
        (tmp_path / "f").write_text(text)
        with pytest.raises(UpstreamFileError):
            read_upstreams(tmp_path / "f")
    with pytest.raises(UpstreamFileError):
        read_upstreams(tmp_path / "gone")


def test_a_name_means_its_own_model_and_then_the_longest_wildcards(tmp_path: Path) -> None:
    known = catalogue_of(
        rows(
            tmp_path,
            {"name": "openai/*", "upstream_model": "*", "prices": {"input": 1, "output": 2}},
            {"name": "openai/gpt*", "prices": {"input": 3, "output": 4}},
            {"name": "openai/gpt-x", "upstream_model": "best"},
        )
    )

    def meaning(name: str) -> str | None:
        model = known.find(name)
        return model.name if model else None

    assert meaning("openai/gpt-x") == "openai/gpt-x"
    assert meaning("openai/gpt-y") == "openai/gpt*"
    assert meaning("openai/other") == "openai/*"
    assert meaning("other") is None
    assert meaning("openai/*") is None
    (deployment,) = known.deployments_of("openai/other")
    assert deployment.engine_model("openai/other") == "other"
    (deployment,) = known.deployments_of("openai/gpt-y")
    assert deployment.engine_model("openai/gpt-y") == "openai/gpt-y"
    (deployment,) = known.deployments_of("openai/gpt-x")
    assert deployment.engine_model("openai/gpt-x") == "best"
    price = known.price_of("openai/gpt-y")
    assert price is not None
    assert price.input_usd_per_million == 3
    assert models_of(known, "", "openai/other") == ["openai/other"]
    with pytest.raises(UnknownName):
        models_of(known, "", "openai/*")


def test_the_worst_case_counts_thoughts_and_a_missing_price_is_no_zero(tmp_path: Path) -> None:
    known = catalogue_of(
        rows(
            tmp_path,
            {"name": "dear*", "prices": {"input": 1, "output": 2, "reasoning": 10}},
            {"name": "free", "prices": {"input": 0, "output": 0}},
            {"name": "unpriced"},
        )
    )
    # 900 tokens in at $1, 100 out at $10 a million.
    assert worst_case_usd(known, ["dear-one"], 100) == Decimal("0.0019")
    assert worst_case_usd(known, ["free"], 100) == 0
    with pytest.raises(Unpriced):
        worst_case_usd(known, ["unpriced"], 100)


def test_routes_lead_to_models_that_are_there(tmp_path: Path) -> None:
    file = tmp_path / "f.json"

    def together(candidates: list[dict[str, Any]]) -> list[str]:
        routes = [{"name": "best", "candidates": candidates}]
        entries = [{**ENTRY, "prices": {"input": 1, "output": 2}}, {**ENTRY, "name": "some*"}]
        file.write_text(json.dumps({"upstreams": entries, "routes": routes}))
        said: list[str] = []
        *_, found = with_upstreams(([], [], [], []), file, said.append)
        assert said == ["some* has no price, so it is never served"]
        return [route.name for route in found]

    assert together([{"model": "gpt-x"}, {"model": "some-thing"}]) == ["gpt-x", "best"]
    for wrong in ([{"model": "other"}], [{"model": "some*"}], [{"modle": "gpt-x"}]):
        with pytest.raises(StackError, match="best"):
            together(wrong)
