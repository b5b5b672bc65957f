"""A tokenizer in which one byte is one token, and a catalogue of two models."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from inference.models.artefacts import scripted_spelling, write_artefacts
from inference.models.registry import MODELS
from inference.tokenizers import load_tokenizer
from store.catalogue import Catalogue, Deployment, Model, Price, Route


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripted")
    write_artefacts(folder, MODELS["scripted"], scripted_spelling())
    return load_tokenizer(folder)


def model(name: str, window: int, *capabilities: str) -> Model:
    return Model(name, "1", window, window // 2, capabilities, "t1", "Apache-2.0")


def price(name: str, dollars_in: str, dollars_out: str) -> Price:
    return Price(
        name,
        Decimal(dollars_in),
        Decimal(0),
        Decimal(dollars_out),
        datetime(2026, 1, 1, tzinfo=UTC),
    )


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue(
        models={
            "small": model("small", 1000, "chat", "grammar"),
            "large": model("large", 8000, "chat"),
            "vectors": model("vectors", 256, "embedding"),
        },
        deployments={
            "small-a": Deployment("small-a", "small", "scripted", ("h:1",), "small"),
            "large-a": Deployment("large-a", "large", "scripted", ("h:1", "h:2"), "large"),
            "large-b": Deployment("large-b", "large", "scripted", ("h:3",), "large", enabled=False),
        },
        prices={"small": price("small", "1", "2"), "large": price("large", "10", "30")},
        routes={
            "default": Route(
                "default",
                "small first",
                (
                    {"model": "small", "when": {"max_prompt_tokens": 500}},
                    {"model": "large", "max_usd_per_million_output": "50"},
                ),
            ),
            "cheap": Route("cheap", "", ({"model": "large", "max_usd_per_million_output": "5"},)),
        },
        digest="d",
    )
