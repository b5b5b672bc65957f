"""`GET /v1/models`: models and routes as OpenAI lists them."""

from __future__ import annotations

from typing import Any

from store.catalogue import Catalogue

__all__ = ["model_object", "models_list"]

#: Models of the catalogue have no date of their own; OpenAI's shape wants one.
_CREATED = 1_767_225_600


def model_object(name: str, owner: str) -> dict[str, Any]:
    """Return one model's document."""
    return {"id": name, "object": "model", "created": _CREATED, "owned_by": owner}


def models_list(catalogue: Catalogue) -> dict[str, Any]:
    """Return the models that are deployed, and the routes that lead to one of them."""
    deployed = {each.model for each in catalogue.deployments.values() if each.enabled}
    names = {name: "overline" for name in catalogue.models if name in deployed}
    for route in catalogue.routes.values():
        if any(candidate["model"] in deployed for candidate in route.candidates):
            names.setdefault(route.name, "overline")
    return {
        "object": "list",
        "data": [model_object(name, owner) for name, owner in sorted(names.items())],
    }
