"""What the edge knows of models, prices and routes: enough to refuse what can never run."""

from __future__ import annotations

import asyncio
import time
from decimal import ROUND_UP, Decimal

from api.problems import not_found
from store.catalogue import Catalogue, load_catalogue
from store.database import Database

__all__ = ["CatalogueView", "models_of", "worst_case_usd"]

_MAX_AGE_S = 1.0
_PER_MILLION = Decimal(1_000_000)
_NANO_USD = Decimal("0.000000001")


class CatalogueView:
    """The catalogue as it was at most a second ago."""

    def __init__(self) -> None:
        self._catalogue: Catalogue | None = None
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def read(self, database: Database) -> Catalogue:
        """Return the catalogue.

        Raises:
            DatabaseUnavailable: It must be read again, and the database does not answer.
        """
        async with self._lock:
            if self._catalogue is None or time.monotonic() - self._read_at > _MAX_AGE_S:
                self._catalogue = await load_catalogue(database)
                self._read_at = time.monotonic()
            return self._catalogue


def models_of(catalogue: Catalogue, route: str, model: str | None) -> list[str]:
    """Return the models that may answer.

    Raises:
        ProblemError: No such route or model (404); the answer names the known ones.
    """
    if model is None:
        if route not in catalogue.routes:
            raise not_found("route", known=catalogue.routes)
        return [str(candidate["model"]) for candidate in catalogue.routes[route].candidates]
    known = [
        name
        for name, registered in catalogue.models.items()
        if "embedding" not in registered.capabilities
    ]
    if model not in known:
        raise not_found("model", known=known)
    return [model]


def worst_case_usd(catalogue: Catalogue, models: list[str], max_tokens: int) -> Decimal:
    """Return what one call can cost at worst, in USD: what the gateway will hold for it.

    A full window at the dearest of the models: the answer priced as output, all the rest as
    uncached input. The gateway decides; this is its sum, done early to refuse early.
    """
    worst = Decimal(0)
    for name in models:
        price, model = catalogue.prices.get(name), catalogue.models.get(name)
        if price is None or model is None:
            continue
        window = model.context_window
        output = min(max_tokens, window)
        worst = max(
            worst,
            Decimal(window - output) * price.input_usd_per_million
            + Decimal(output) * price.output_usd_per_million,
        )
    return (worst / _PER_MILLION).quantize(_NANO_USD, rounding=ROUND_UP)
