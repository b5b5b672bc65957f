"""Errors as OpenAI's SDKs read them: `{"error": {"message", "type", "param", "code"}}`.

The status decides which class an SDK raises and whether it tries again by itself; what a second
try cannot mend says so in `x-should-retry`. As everywhere, neither the input nor the text of a
foreign exception is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from workflows import errors

__all__ = [
    "OPENAI_PATHS",
    "OpenAIError",
    "OpenAIErrorDocument",
    "error_object",
    "error_of",
    "error_response",
    "speaks_openai",
]

#: Everything under these is answered in OpenAI's shapes, errors included.
OPENAI_PATHS = (
    "/v1/chat/",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/models",
    "/v1/responses",
    "/v1/files",
    "/v1/batches",
)


def speaks_openai(path: str) -> bool:
    """Tell whether a path belongs to the OpenAI-compatible surface."""
    return path.startswith(OPENAI_PATHS)


class OpenAIErrorObject(BaseModel):
    """What went wrong, in OpenAI's words."""

    message: str = Field(description="For people: what is wrong, and what to do.")
    type: str = Field(description="OpenAI's coarse kind of error.")
    param: str | None = Field(description="Parameter that is meant: `messages[0].content`.")
    code: str | None = Field(description="Stable code to branch on.")
    overline_code: str | None = Field(
        default=None, description="Our own code of it, where it is one of docs/errors.md."
    )
    request_id: str = Field(description="Id of the request (UUIDv7).")


class OpenAIErrorDocument(BaseModel):
    """An error of the OpenAI-compatible routes."""

    error: OpenAIErrorObject = Field(description="The error.")


class OpenAIError(Exception):
    """An answer other than success on the OpenAI-compatible surface.

    Args:
        status: HTTP status; it decides which class an SDK raises.
        message: For people: what is wrong and what to do.
        code: Stable word to branch on.
        param: Which parameter is meant, as OpenAI writes it: `messages[0].content`.
        type: OpenAI's coarse kind; by default the one of the status.
        headers: Headers of the answer.
        facts: Further members of the error object: numbers and names a program may act upon.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        type: str | None = None,  # noqa: A002 - the field's name on the wire
        headers: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.type = type or _TYPES.get(status, _type_of(status))
        self.headers = dict(headers or {})
        self.facts = dict(facts or {})


_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    429: "rate_limit_error",
}


def _type_of(status: int) -> str:
    return "server_error" if status >= 500 else "invalid_request_error"


def error_object(error: OpenAIError, request_id: str) -> dict[str, Any]:
    """Return the document of an error; it is also what a stream says when it breaks."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
            **error.facts,
            "request_id": request_id,
        }
    }


def error_response(error: OpenAIError, request_id: str) -> Response:
    """Return the answer that an error is."""
    return Response(
        json.dumps(error_object(error, request_id)),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )


#: OpenAI's words for our errors. A spent budget is no rate limit: waiting does not mend it, and
#: the SDKs would ask twice more on a 429.
_CODES: Mapping[type[errors.OverlineError], tuple[int, str]] = {
    errors.InvalidRequest: (400, "invalid_value"),
    errors.MalformedRequest: (400, "invalid_json"),
    errors.RequestTooLarge: (413, "request_too_large"),
    errors.NotFound: (404, "not_found"),
    errors.Conflict: (409, "conflict"),
    errors.ContextTooLong: (400, "context_length_exceeded"),
    errors.RequestRefused: (400, "refused_by_model"),
    errors.OutputInvalid: (422, "output_invalid"),
    errors.Unauthenticated: (401, "invalid_api_key"),
    errors.KeyRefused: (403, "key_refused"),
    errors.Forbidden: (403, "insufficient_permissions"),
    errors.BudgetExceeded: (402, "insufficient_quota"),
    errors.ContentBlocked: (400, "content_filter"),
    errors.ApprovalRequired: (403, "approval_required"),
    errors.RateLimited: (429, "rate_limit_exceeded"),
    errors.DatabaseDown: (503, "database_unavailable"),
    errors.OrchestratorDown: (503, "orchestrator_unavailable"),
    errors.EngineDown: (503, "model_unavailable"),
    errors.SafetyUnavailable: (503, "safety_unavailable"),
    errors.ModelChanged: (503, "model_changed"),
}


def error_of(
    kind: type[errors.OverlineError],
    message: str,
    *,
    status: int | None = None,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> OpenAIError:
    """Return one of our errors in OpenAI's words."""
    own_status, own_code = _CODES.get(kind, (kind.status, "internal_error"))
    status = own_status if status is None or (own_status == 400 and status == 422) else status
    sent = dict(headers or {})
    if not kind.retryable and status not in (500, 429):
        # 409 is tried again by the SDKs unless they are told that it is of no use.
        sent.setdefault("x-should-retry", "false")
    if status == 503:
        sent.setdefault("Retry-After", "2")
    return OpenAIError(
        status,
        message,
        code=code or own_code,
        param=param,
        headers=sent,
        facts={"overline_code": kind.code, **(facts or {})},
    )
