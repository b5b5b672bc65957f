"""From exceptions to error documents: what may pass a route, and the one place it is told from."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from api.error_shape import error_answer, no_such_route
from api.invalid_input import field_problems
from api.openai.errors import OpenAIError
from api.problems import ProblemError
from inference.errors import EngineError
from store.errors import DatabaseUnavailable, Fenced, KeyRestricted
from workflows import errors

__all__ = ["add_error_handlers"]

#: Everything else is a defect: the edge logs where it came from, and answers a 500.
_FORESEEN = (
    ProblemError,
    OpenAIError,
    errors.OverlineError,
    EngineError,
    DatabaseUnavailable,
    Fenced,
    KeyRestricted,
)


def add_error_handlers(app: FastAPI) -> None:
    """Install the handlers."""
    for kind in _FORESEEN:
        app.add_exception_handler(kind, _on_foreseen)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid)


async def _on_foreseen(request: Request, exc: Exception) -> Response:
    return error_answer(request.scope, exc)


async def _on_http_exception(request: Request, exc: Exception) -> Response:
    """The framework's own refusals: no such route, wrong method."""
    assert isinstance(exc, HTTPException)
    if exc.status_code == 404:
        return no_such_route(
            request.scope, "There is no such route; `/openapi.json` lists those there are."
        )
    kind, detail = {
        405: (errors.MalformedRequest, "This route does not take this method; see `Allow`."),
        413: (errors.RequestTooLarge, "The body of the request is too large."),
    }.get(exc.status_code, (errors.MalformedRequest, "The request could not be read."))
    problem = ProblemError(kind, detail, status=exc.status_code, headers=exc.headers)
    return error_answer(request.scope, problem)


async def _on_invalid(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    problems = field_problems(exc.errors())
    where = ", ".join(dict.fromkeys(f"{e.in_} {e.pointer or '(whole)'}" for e in problems[:5]))
    detail = f"{len(problems)} thing(s) wrong with the request: {where}."
    return error_answer(request.scope, ProblemError(errors.InvalidRequest, detail, errors=problems))
