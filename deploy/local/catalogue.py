"""What the stack's models are, cost and serve, put into the database's catalogue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from activities.route_rules import Rule
from deploy.local.database import admin_url
from deploy.local.errors import StackError
from deploy.local.part import Say
from deploy.local.plan import Plan
from deploy.upstreams import UpstreamFileError, read_upstreams
from inference.models.registry import MODELS, ROUTES
from store import catalogue
from store.database import Database
from store.urls import database_url

__all__ = ["Rows", "entries", "prepare_catalogue", "with_upstreams"]

Rows = tuple[
    list[catalogue.Model],
    list[catalogue.Deployment],
    list[catalogue.Price],
    list[catalogue.Route],
]


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
    models, deployments, prices, routes = with_upstreams(
        entries(plan.given.models, plan.given.models_folder, plan.triton_urls),
        plan.given.upstreams,
        say,
    )

    async def sync() -> str:
        database = await Database.open(database_url(url), max_size=1, name="overline up")
        try:
            return await catalogue.sync_catalogue(database, models, deployments, prices, routes)
        finally:
            await database.close()

    asyncio.run(sync())
    return ", ".join(model.name for model in models)


def entries(names: Sequence[str], models_folder: Path, urls: Sequence[str]) -> Rows:
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


def with_upstreams(served: Rows, file: Path | None, say: Say) -> Rows:
    """Return the rows with those of a file of upstreams.

    Each model elsewhere has a route of its own, as those served here; wildcards have none. A route
    of the file takes the place of one with the same name.

    Raises:
        StackError: The file cannot be used.
    """
    try:
        more = read_upstreams(file)
    except UpstreamFileError as error:
        raise StackError(f"OVERLINE_UPSTREAMS: {error}") from None
    for name in more.unpriced:
        say(f"{name} has no price, so it is never served")
    models, deployments, prices, routes = served
    own = [
        catalogue.Route(model.name, f"{model.name} and nothing else.", ({"model": model.name},))
        for model in more.models
        if not model.name.endswith("*") and "embedding" not in model.capabilities
    ]
    by_name = {route.name: route for route in (*routes, *own, *more.routes)}
    together = catalogue.Catalogue(
        {model.name: model for model in (*models, *more.models)}, {}, {}, by_name, ""
    )
    for route in more.routes:
        for candidate in route.candidates:
            try:
                name = Rule.model_validate(candidate).model
            except ValueError as error:
                raise StackError(
                    f"OVERLINE_UPSTREAMS: {file}: route {route.name!r}: {error}"
                ) from None
            if together.find(name) is None:
                raise StackError(
                    f"OVERLINE_UPSTREAMS: {file}: route {route.name!r} names the model {name!r}, "
                    "which is neither served here nor an upstream's."
                )
    return (
        [*models, *more.models],
        [*deployments, *more.deployments],
        [*prices, *more.prices],
        list(by_name.values()),
    )


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
