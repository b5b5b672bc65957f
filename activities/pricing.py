"""The most a call can cost: what admission holds, before anything is known of the prompt."""

from __future__ import annotations

from decimal import ROUND_UP, Decimal

from store.catalogue import Catalogue
from workflows.errors import NotFound

__all__ = ["models_of", "worst_case_usd"]

_PER_MILLION = Decimal(1_000_000)
_NANO_USD = Decimal("0.000000001")


def models_of(catalogue: Catalogue, route: str, model: str | None) -> list[str]:
    """Return the models that may answer, in the route's order.

    Raises:
        NotFound: No such route or model; the message names the known ones.
    """
    if model is not None:
        if model not in catalogue.models or "embedding" in catalogue.models[model].capabilities:
            known = ", ".join(
                sorted(
                    name
                    for name, known in catalogue.models.items()
                    if "embedding" not in known.capabilities
                )
            )
            raise NotFound(f"no model {model!r}; known: {known}", pointer="/model")
        return [model]
    if route not in catalogue.routes:
        known = ", ".join(sorted(catalogue.routes))
        raise NotFound(f"no route {route!r}; known: {known}", pointer="/route")
    return [str(candidate["model"]) for candidate in catalogue.routes[route].candidates]


def worst_case_usd(catalogue: Catalogue, models: list[str], max_tokens: int) -> Decimal:
    """Return the price of a full window at the dearest of `models`, in USD, rounded up.

    A window holds prompt and answer together, so the answer's tokens are priced as output and
    all the rest as uncached input.

    Raises:
        NotFound: A model has no price; an unpriced model is never served.
    """
    worst = Decimal(0)
    for name in models:
        price = catalogue.prices.get(name)
        if price is None:
            raise NotFound(f"model {name!r} has no price, so it is not served", pointer="/model")
        window = catalogue.models[name].context_window
        output = min(max_tokens, window)
        worst = max(
            worst,
            (
                Decimal(window - output) * price.input_usd_per_million
                + Decimal(output) * price.output_usd_per_million
            )
            / _PER_MILLION,
        )
    return worst.quantize(_NANO_USD, rounding=ROUND_UP)
