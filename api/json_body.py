"""Request bodies: strict JSON into a frozen model, described in the OpenAPI document.

FastAPI parses JSON into Python first and then coerces: `"12"` passes for 12 and `"yes"` for true.
A body here is validated from the JSON itself in strict mode, so wrong types are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from api.problems import invalid

__all__ = ["BODY_MODELS", "json_body", "request_body"]

M = TypeVar("M", bound=BaseModel)

#: Models that bodies are made of, by name; the OpenAPI document takes their schemas from here.
BODY_MODELS: dict[str, type[BaseModel]] = {}


def json_body(model: type[M]) -> Callable[[Request], Coroutine[Any, Any, M]]:
    """Return a dependency that reads the body as `model`.

    Raises:
        ProblemError: There is no body (422).
        RequestValidationError: It does not fit the model (422).
    """
    BODY_MODELS[model.__name__] = model

    async def read(request: Request) -> M:
        body = await request.body()
        if not body:
            raise invalid("", "missing", "A JSON body is required.")
        try:
            return model.model_validate_json(body, strict=True)
        except ValidationError as exc:
            errors = exc.errors(include_url=False, include_input=False)
            raise RequestValidationError(
                [{**error, "loc": ("body", *error["loc"])} for error in errors]
            ) from None

    return read


def request_body(model: type[BaseModel], example: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the `openapi_extra` of a route whose body `json_body(model)` reads."""
    content: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
    if example is not None:
        content["example"] = example
    return {"requestBody": {"required": True, "content": {"application/json": content}}}
