"""Which models may answer, and the most a call of them can cost: one sum, for edge and gateway."""

from __future__ import annotations

from decimal import ROUND_UP, Decimal

from store.catalogue import Catalogue
from store.errors import StoreError

__all__ = ["UnknownName", "Unpriced", "dollars", "models_of", "worst_case_usd"]

_PER_MILLION = Decimal(1_000_000)
_NANO_USD = Decimal("0.000000001")


class UnknownName(StoreError):
    """The catalogue has no such route or model.

    Attributes:
        kind: `route` or `model`.
        known: the names there are, sorted.
    """

    def __init__(self, kind: str, name: str, known: list[str]) -> None:
        super().__init__(f"no {kind} {name!r}; known: {', '.join(known)}")
        self.kind = kind
        self.known = known


class Unpriced(StoreError):
    """A model has no price in force, so it is never served."""


def dollars(tokens_at_prices: Decimal) -> Decimal:
    """Return the dollars of tokens times their price a million, rounded up to a nano-dollar."""
    return (tokens_at_prices / _PER_MILLION).quantize(_NANO_USD, rounding=ROUND_UP)


def models_of(catalogue: Catalogue, route: str, model: str | None) -> list[str]:
    """Return the models that may answer: the one asked for, or the route's, in its order.

    Raises:
        UnknownName: No such route or model, or a model that only embeds.
    """
    if model is not None:
        known = sorted(
            name for name, m in catalogue.models.items() if "embedding" not in m.capabilities
        )
        found = catalogue.find(model)
        if found is None or found.name not in known:
            raise UnknownName("model", model, known)
        return [model]
    if route not in catalogue.routes:
        raise UnknownName("route", route, sorted(catalogue.routes))
    return [str(candidate["model"]) for candidate in catalogue.routes[route].candidates]


def worst_case_usd(catalogue: Catalogue, models: list[str], max_tokens: int) -> Decimal:
    """Return the price of a full window at the dearest of `models`, in USD, rounded up.

    A window holds prompt and answer together. Every token of it is priced at the dearest of what
    it may turn out to be: input, cached or not, and, for as many as the answer may have, output.
    Models without a price are left out: the router never chooses them.

    Raises:
        Unpriced: None of the models has a price.
    """
    worst: Decimal | None = None
    for name in models:
        price, model = catalogue.price_of(name), catalogue.find(name)
        if price is None or model is None:
            continue
        output = min(max_tokens, model.context_window)
        taken_in = max(price.input_usd_per_million, price.cached_input_usd_per_million)
        full = Decimal(model.context_window - output) * taken_in + Decimal(output) * max(
            taken_in, price.output_usd_per_million, price.reasoning_usd_per_million or 0
        )
        worst = full if worst is None else max(worst, full)
    if worst is None:
        raise Unpriced(f"none of {', '.join(models)} has a price, so none is served")
    return dollars(worst)
