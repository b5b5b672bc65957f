"""Which shape an error has: OpenAI's on its routes, RFC 9457 on our own, both where none is sure.

A path under `/v1` that is no route may be a client's of either kind, so its document is a problem
with OpenAI's `error` object as one more member.
"""

from __future__ import annotations

import json

from starlette.responses import Response
from starlette.types import Scope

from api.openai.errors import error_object, error_of, error_response, speaks_openai
from api.openai.failures import openai_error
from api.problems import PROBLEM_MEDIA_TYPE, ProblemError, problem_response, unavailable
from store.errors import DatabaseUnavailable, KeyRestricted
from workflows import errors

__all__ = ["error_answer", "no_such_route"]


def error_answer(scope: Scope, error: Exception) -> Response:
    """Return the answer to a request that went wrong, whatever it was and wherever it was seen."""
    request_id = str(scope.get("state", {}).get("request_id", ""))
    if speaks_openai(scope["path"]):
        return error_response(openai_error(error), request_id)
    problem = _problem_of(error)
    return problem_response(
        request_id,
        problem.kind,
        problem.detail,
        status=problem.status,
        headers=problem.headers,
        **problem.members,
    )


def no_such_route(scope: Scope, detail: str) -> Response:
    """Return the answer for a path that is no route."""
    request_id = str(scope.get("state", {}).get("request_id", ""))
    told = error_of(errors.NotFound, detail, code="unknown_url")
    if speaks_openai(scope["path"]):
        return error_response(told, request_id)
    answer = problem_response(request_id, errors.NotFound, detail)
    if not scope["path"].startswith("/v1/"):
        return answer
    document = {**json.loads(bytes(answer.body)), **error_object(told, request_id)}
    return Response(json.dumps(document), status_code=404, media_type=PROBLEM_MEDIA_TYPE)


def _problem_of(error: Exception) -> ProblemError:
    match error:
        case ProblemError():
            return error
        case errors.OverlineError():
            return ProblemError(type(error), error.message)
        case KeyRestricted():
            return ProblemError(errors.Forbidden, str(error))
        case DatabaseUnavailable():
            return unavailable("database")
        case _:
            # Calls are made by the OpenAI-compatible routes alone.
            return unavailable("triton")
