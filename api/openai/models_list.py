"""`GET /v1/models`: models and routes as OpenAI lists them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from store.catalogue import Catalogue

__all__ = ["is_served", "model_object", "models_list", "served_names"]

#: Models of the catalogue have no date of their own; OpenAI's shape wants one.
_CREATED = 1_767_225_600


def served_names(catalogue: Catalogue) -> list[str]:
    """Return what can be named as `model`; a wildcard stands for names that nobody can list."""
    return [name for name in (*catalogue.models, *catalogue.routes) if is_served(catalogue, name)]


def is_served(catalogue: Catalogue, name: str) -> bool:
    """Tell whether a name is a model that is deployed and has a price, or a route to one."""
    route = catalogue.routes.get(name)
    models = [name] if route is None else [name, *(each["model"] for each in route.candidates)]
    return any(
        catalogue.deployments_of(model) and catalogue.price_of(model) is not None
        for model in models
    )


def model_object(name: str) -> dict[str, Any]:
    """Return the document of one."""
    return {"id": name, "object": "model", "created": _CREATED, "owned_by": "overline"}


def models_list(names: Iterable[str]) -> dict[str, Any]:
    """Return the document of some, by name."""
    return {"object": "list", "data": [model_object(name) for name in sorted(set(names))]}
