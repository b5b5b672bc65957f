"""What the catalogue is told of the models served."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local.catalogue import entries
from deploy.local.errors import StackError
from inference.models.registry import MODELS


def _tokenizer(folder: Path, name: str, version: str = "v1") -> None:
    (folder / name).mkdir()
    (folder / name / "model.json").write_text(f'{{"tokenizer_version": "{version}"}}')


def test_served_models_with_prices_and_replicas(tmp_path: Path) -> None:
    _tokenizer(tmp_path, "scripted", "abc")
    models, deployments, prices, routes = entries(("scripted",), tmp_path, ("a:1", "b:1"))
    assert [(model.name, model.tokenizer_version) for model in models] == [("scripted", "abc")]
    assert deployments[0].urls == ("a:1", "b:1")
    assert prices[0].output_usd_per_million == MODELS["scripted"].price.output_usd_per_million
    assert {candidate["model"] for route in routes for candidate in route.candidates} == {
        "scripted"
    }


def test_an_unregistered_model_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="smollm2-135m-instruct"):
        entries(("gpt-9",), tmp_path, ("a:1",))


def test_a_missing_tokenizer_says_where_it_comes_from(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="OVERLINE_MODELS_DIR"):
        entries(("scripted",), tmp_path, ("a:1",))
