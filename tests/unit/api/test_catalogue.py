"""The edge's early sums and names agree with the gateway's."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from activities import pricing
from api.catalogue import models_of, worst_case_usd
from api.problems import ProblemError
from store.catalogue import Catalogue, Model, Price, Route

_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def catalogue() -> Catalogue:
    """Two language models, one embedding model, two routes."""
    models = {
        "small": Model("small", "1", 4096, 2048, ("chat",), "t", "none"),
        "large": Model("large", "1", 32_768, 4096, ("chat",), "t", "none"),
        "embed": Model("embed", "1", 256, 0, ("embedding",), "t", "none"),
    }
    prices = {
        "small": Price("small", Decimal("0.02"), Decimal("0.005"), Decimal("0.08"), _MOMENT),
        "large": Price("large", Decimal("1.5"), Decimal("0.3"), Decimal(6), _MOMENT),
    }
    routes = {
        "default": Route("default", "", ({"model": "small"}, {"model": "large"})),
        "cheap": Route("cheap", "", ({"model": "small"},)),
    }
    return Catalogue(models, {}, prices, routes, "d")


@pytest.mark.parametrize("max_tokens", [1, 128, 256, 4096, 32_768])
@pytest.mark.parametrize(
    ("route", "model"), [("default", None), ("cheap", None), ("default", "large")]
)
def test_the_worst_case_is_what_the_gateway_will_hold(
    catalogue: Catalogue, route: str, model: str | None, max_tokens: int
) -> None:
    ours = models_of(catalogue, route, model)
    theirs = pricing.models_of(catalogue, route, model)
    assert ours == theirs
    assert worst_case_usd(catalogue, ours, max_tokens) == pricing.worst_case_usd(
        catalogue, theirs, max_tokens
    )


@pytest.mark.parametrize(
    ("route", "model", "known"),
    [
        ("nowhere", None, ("cheap", "default")),
        ("default", "nobody", ("large", "small")),
        ("default", "embed", ("large", "small")),
    ],
)
def test_unknown_names_come_with_the_known_ones(
    catalogue: Catalogue, route: str, model: str | None, known: tuple[str, ...]
) -> None:
    with pytest.raises(ProblemError) as refused:
        models_of(catalogue, route, model)
    assert refused.value.status == 404
    assert refused.value.members["known"] == known
