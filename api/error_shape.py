"""Which shape an error has: OpenAI's on its routes, RFC 9457 on our own, both where none is sure.

A path under `/v1` that is no route may be a client's of either kind, so its document is a problem
with OpenAI's `error` object as one more member.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Scope

from api.openai.errors import error_object, error_of, error_response, speaks_openai
from api.openai.failures import problem_error
from api.problems import PROBLEM_MEDIA_TYPE, ProblemError, problem_response
from workflows import errors

__all__ = ["error_answer", "no_such_route"]


def error_answer(
    scope: Scope,
    kind: type[errors.OverlineError],
    detail: str,
    # A member may be called `scope`, too: the budget's, or the one a key lacks.
    /,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    **members: Any,
) -> Response:
    """Return the answer to a request that went wrong; see `ProblemError` for the arguments."""
    request_id = str(scope.get("state", {}).get("request_id", ""))
    if speaks_openai(scope["path"]):
        problem = ProblemError(kind, detail, status=status, headers=headers, **members)
        return error_response(problem_error(problem), request_id)
    return problem_response(request_id, kind, detail, status=status, headers=headers, **members)


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
