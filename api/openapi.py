"""The OpenAPI document: complete, and true to what the service answers.

FastAPI describes errors as `application/json`; here they become what they are, problem documents,
except on the routes that speak OpenAI's.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.json_body import BODY_MODELS
from api.openai.errors import OpenAIErrorDocument, speaks_openai
from api.problems import PROBLEM_MEDIA_TYPE, Problem

__all__ = ["answers", "describe", "openai_answers", "version"]

_REFERENCE = "#/components/schemas/{model}"

_MEANINGS: dict[int, str] = {
    400: "The body is not valid JSON.",
    401: "No API key, or one that does not count.",
    402: "A budget is too small for even one call; the numbers are in the answer.",
    403: "The key lacks the scope.",
    404: "No such thing, or not one of the caller's.",
    405: "The route does not take this method.",
    409: "The request contradicts an earlier one: the idempotency key was used for another, or "
    "the task has ended.",
    413: "The body is too large.",
    415: "The body is not sent as `application/json`.",
    422: "A field has a value that cannot be used; `errors` points at it.",
    500: "A defect of ours; the request id finds it in the logs.",
    503: "The database, Temporal or Triton does not answer; `part` names it.",
}

#: What OpenAI's routes mean by them where it is something else.
_OPENAI_MEANINGS: dict[int, str] = {
    400: "Something of the request cannot be used; `param` names it.",
    409: "An earlier request with this idempotency key is being made, or it is too early or too "
    "late for what is asked.",
    422: "The idempotency key was used for another request.",
    429: "A limit of requests, tokens or calls at once is reached, or an upstream's own is.",
    503: "The database or every engine of the model is away; try again.",
}

_BODY = (400, 413, 415)
_ALWAYS = (422, 500, 503)
_FRAMEWORKS_422 = "Validation Error"


def answers(*statuses: int, body: bool = False, key: bool = True) -> dict[int | str, Any]:
    """Return the `responses` of an operation: its errors beside those every operation has.

    Args:
        statuses: Errors of this operation.
        body: Whether it reads a JSON body.
        key: Whether it needs an API key.
    """
    codes = {*statuses, *_ALWAYS, *(_BODY if body else ()), *((401, 403) if key else ())}
    return {code: {"description": _MEANINGS[code], "model": Problem} for code in sorted(codes)}


def openai_answers(
    *statuses: int, body: bool = False, repeats: bool = False
) -> dict[int | str, Any]:
    """Return the same of an operation that speaks OpenAI's words.

    Args:
        statuses: Errors of this operation.
        body: Whether it reads a JSON body.
        repeats: Whether it takes an idempotency key.
    """
    codes = {400, 401, 403, 500, 503, *statuses}
    codes |= {*(_BODY if body else ()), *((409, 422) if repeats else ())}
    said = _MEANINGS | _OPENAI_MEANINGS
    return {code: {"description": said[code], "model": Problem} for code in sorted(codes)}


def version() -> str:
    """Return the version of the installed distribution."""
    try:
        return metadata.version("overline")
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "0.1.0"


def describe(app: FastAPI) -> dict[str, Any]:
    """Build the document of an application."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
        servers=app.servers or [{"url": "/"}],
    )
    schemas: dict[str, Any] = document["components"]["schemas"]
    for model in BODY_MODELS.values():
        schema = model.model_json_schema(ref_template=_REFERENCE)
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    told = OpenAIErrorDocument.model_json_schema(ref_template=_REFERENCE)
    schemas.update(told.pop("$defs"))
    schemas[OpenAIErrorDocument.__name__] = told
    for path, operations in document["paths"].items():
        error = ("application/json", OpenAIErrorDocument.__name__)
        if not speaks_openai(path):
            error = (PROBLEM_MEDIA_TYPE, Problem.__name__)
        for operation in operations.values():
            if operation["responses"].get("422", {}).get("description") == _FRAMEWORKS_422:
                # The framework's own, beside whatever is validated; here it is a 400.
                del operation["responses"]["422"]
            _describe_answers(operation["responses"], *error)
    return document


def _describe_answers(responses: dict[str, Any], media_type: str, error: str) -> None:
    for code, response in responses.items():
        headers = response.setdefault("headers", {})
        headers["X-Request-ID"] = {
            "description": "Id of the request (UUIDv7).",
            "schema": {"type": "string", "format": "uuid"},
        }
        if code == "401":
            headers["WWW-Authenticate"] = {
                "description": "The scheme to authenticate with.",
                "schema": {"type": "string"},
            }
        if code in ("429", "503"):
            headers["Retry-After"] = {
                "description": "Seconds to wait before trying again.",
                "schema": {"type": "integer"},
            }
        if int(code) >= 400:
            response["content"] = {media_type: {"schema": {"$ref": _REFERENCE.format(model=error)}}}
