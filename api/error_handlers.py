"""From exceptions to error documents: one handler for each kind that may pass a route."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from api.error_shape import error_answer, no_such_route
from api.invalid_input import field_problems
from api.openai.errors import OpenAIError, error_response
from api.problems import ProblemError, request_id_of, unavailable
from store.errors import DatabaseUnavailable, KeyRestricted
from workflows import errors

__all__ = ["add_error_handlers"]


def add_error_handlers(app: FastAPI) -> None:
    """Install the handlers."""
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(OpenAIError, _on_openai_error)
    app.add_exception_handler(errors.OverlineError, _on_overline_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(DatabaseUnavailable, _on_database_unavailable)
    app.add_exception_handler(KeyRestricted, _on_key_restricted)


async def _on_problem(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, ProblemError)
    return error_answer(
        request.scope,
        exc.kind,
        exc.detail,
        status=exc.status,
        headers=exc.headers,
        **exc.members,
    )


async def _on_openai_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, OpenAIError)
    return error_response(exc, request_id_of(request))


async def _on_overline_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, errors.OverlineError)
    return error_answer(request.scope, type(exc), exc.message)


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
    return error_answer(request.scope, kind, detail, status=exc.status_code, headers=exc.headers)


async def _on_invalid(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    problems = field_problems(exc.errors())
    where = ", ".join(dict.fromkeys(f"{e.in_} {e.pointer or '(whole)'}" for e in problems[:5]))
    return error_answer(
        request.scope,
        errors.InvalidRequest,
        f"{len(problems)} thing(s) wrong with the request: {where}.",
        errors=problems,
    )


async def _on_database_unavailable(request: Request, exc: Exception) -> Response:
    return await _on_problem(request, unavailable("database"))


async def _on_key_restricted(request: Request, exc: Exception) -> Response:
    return error_answer(request.scope, errors.Forbidden, str(exc))
