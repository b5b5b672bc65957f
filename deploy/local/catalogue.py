"""What the stack's models are, cost and serve, put into the database's catalogue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.local.database import admin_url
from deploy.local.errors import StackError
from deploy.local.part import Say
from deploy.local.plan import Plan
from inference.models.registry import MODELS, ROUTES
from store import catalogue
from store.database import Database
from store.urls import database_url

__all__ = ["entries", "prepare_catalogue"]


def prepare_catalogue(plan: Plan, say: Say) -> str:
    """Make the catalogue say what this stack serves.

    Returns:
        A line about the outcome.

    Raises:
        StackError: A model is not registered, or its tokenizer is missing.
    """
    url = admin_url(plan)
    if url is None:
        return "kept as it is (your own database)"
    say("models, prices and routes")
    models, deployments, prices, routes = entries(
        plan.given.models, plan.given.models_folder, plan.triton_urls
    )

    async def sync() -> str:
        database = await Database.open(database_url(url), max_size=1, name="overline up")
        try:
            return await catalogue.sync_catalogue(database, models, deployments, prices, routes)
        finally:
            await database.close()

    asyncio.run(sync())
    return ", ".join(model.name for model in models)


def entries(
    names: Sequence[str], models_folder: Path, urls: Sequence[str]
) -> tuple[
    list[catalogue.Model],
    list[catalogue.Deployment],
    list[catalogue.Price],
    list[catalogue.Route],
]:
    """Return the catalogue's rows for the models served; routes to no served model are left out.

    Args:
        names: Models served.
        models_folder: Where their tokenizers are.
        urls: ``host:port`` of every Triton replica.

    Raises:
        StackError: A model is not registered, or its tokenizer is missing.
    """
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise StackError(
            f"OVERLINE_MODELS names {', '.join(unknown)}; registered are {', '.join(MODELS)}."
        )
    served = [MODELS[name] for name in dict.fromkeys(names)]
    models = [
        catalogue.Model(
            name=model.name,
            version=model.version,
            context_window=model.context_window,
            max_output_tokens=model.max_output_tokens,
            capabilities=tuple(sorted(model.capabilities)),
            tokenizer_version=_tokenizer_version(models_folder / model.name),
            licence=model.licence,
        )
        for model in served
    ]
    deployments = [
        catalogue.Deployment(
            id=f"{model.name}-local",
            model=model.name,
            engine=model.engine,
            urls=tuple(urls),
            triton_model=model.triton_model,
            # Calls of one model wait for one engine: a class of its own.
            deployment_class=model.name if model.kind == "generate" else "",
            slots=model.slots,
        )
        for model in served
    ]
    prices = [
        catalogue.Price(
            model=model.name,
            input_usd_per_million=model.price.input_usd_per_million,
            cached_input_usd_per_million=model.price.cached_input_usd_per_million,
            output_usd_per_million=model.price.output_usd_per_million,
            valid_from=model.price.valid_from,
        )
        for model in served
    ]
    known = {model.name for model in served}
    routes = []
    for route in ROUTES:
        candidates: tuple[dict[str, Any], ...] = tuple(
            dict(candidate) for candidate in route.candidates if candidate["model"] in known
        )
        if candidates:
            routes.append(catalogue.Route(route.name, route.description, candidates))
    return models, deployments, prices, routes


def _tokenizer_version(folder: Path) -> str:
    """The identity of a model's spelling: a generation is never continued across a change of it."""
    try:
        return str(json.loads((folder / "model.json").read_text())["tokenizer_version"])
    except (OSError, ValueError, KeyError) as error:
        raise StackError(
            f"The tokenizer of {folder.name} is missing in {folder.parent}. It is made when the "
            "embedded Triton serves the model; with a Triton of your own, point "
            "OVERLINE_MODELS_DIR at the folder that was made for it."
        ) from error
