"""Errors as callers see them: RFC 9457 problem documents, and nothing that could leak.

Every error of this service is one `Problem`, with the id of the request, a code of
`workflows.errors` and, for bad input, a JSON pointer to the field. Neither the input nor the text
of a foreign exception is ever repeated in it: both may hold a prompt or a secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from store.identity import AuthFailure
from workflows import errors

__all__ = [
    "PROBLEM_MEDIA_TYPE",
    "FieldProblem",
    "Part",
    "Problem",
    "ProblemError",
    "forbidden",
    "invalid",
    "not_accepted",
    "not_found",
    "problem_response",
    "request_id_of",
    "unauthenticated",
    "unavailable",
]

PROBLEM_MEDIA_TYPE = "application/problem+json"

#: What can be behind the API and down. The names appear in 503 answers and in `/readyz`.
Part = Literal["database", "temporal", "triton"]

#: Where in a request a field is.
Location = Literal["body", "query", "path", "header"]


class FieldProblem(BaseModel):
    """One thing wrong with one field of the request."""

    model_config = ConfigDict(frozen=True)

    pointer: str = Field(
        description="JSON pointer (RFC 6901) to the field, within the part of the request that "
        "`in` names; empty: the whole part.",
        examples=["/tools/0"],
    )
    in_: Location = Field(alias="in", description="Part of the request the field is in.")
    code: str = Field(description="Stable code of what is wrong.", examples=["too_long"])
    detail: str = Field(description="What is expected of the field, in words.")


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    model_config = ConfigDict(frozen=True)

    type: str = Field(description="URI of this kind of problem: `urn:overline:problem:<code>`.")
    title: str = Field(description="The kind of problem, in words that never vary.")
    status: int = Field(description="HTTP status code of the answer.", ge=400, le=599)
    code: str = Field(
        description="Stable code to branch on; docs/errors.md.", examples=["OVL-3001"]
    )
    detail: str = Field(description="This occurrence, in words: what, which limit, what to do.")
    request_id: str = Field(description="Id of the request (UUIDv7); name it when asking for help.")
    errors: tuple[FieldProblem, ...] | None = Field(
        default=None, description="For invalid input: every field that is wrong."
    )
    known: tuple[str, ...] | None = Field(
        default=None, description="For an unknown name: the names that do exist."
    )
    part: Part | None = Field(
        default=None, description="For 503: the part behind the API that does not answer."
    )
    parts: dict[str, str] | None = Field(
        default=None, description="For `/readyz`: the state of every part, in words."
    )
    rule: str | None = Field(
        default=None, description="With a safety policy: the id of the rule that says so."
    )
    retry_after_s: int | None = Field(
        default=None, description="Seconds to wait before trying again, as in `Retry-After`."
    )
    scope: str | None = Field(
        default=None,
        description="For 402: the budget that is too small (task, key, team or organisation). "
        "For 403: the scope the key lacks.",
    )
    limit_usd: Decimal | None = Field(default=None, description="For 402: that budget, in USD.")
    spent_usd: Decimal | None = Field(default=None, description="For 402: spent of it, in USD.")
    held_usd: Decimal | None = Field(
        default=None, description="For 402: held of it by calls in flight, in USD."
    )
    needed_usd: Decimal | None = Field(
        default=None, description="For 402: what one call can cost at worst, in USD."
    )


class ProblemError(Exception):
    """An answer other than success. Carries only what the caller may read.

    Args:
        kind: Error of the tree; gives code, title and HTTP status.
        detail: What happened, in words; never the input, never another exception's text.
        status: HTTP status where it is not the kind's own.
        headers: Headers of the answer.
        members: Further members of the `Problem`.
    """

    def __init__(
        self,
        kind: type[errors.OverlineError],
        detail: str,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(kind.code)
        self.kind = kind
        self.detail = detail
        self.status = status or kind.status
        self.headers = dict(headers or {})
        self.members = members


def not_found(thing: str, *, known: Iterable[str] | None = None) -> ProblemError:
    """No such thing, or one of another tenant: one answer for both.

    Args:
        thing: What was asked for, such as "task".
        known: The names there are, where there are few and the caller may know them.
    """
    if known is None:
        return ProblemError(errors.NotFound, f"There is no such {thing}.")
    names = tuple(sorted(known))
    listed = ", ".join(names) or "none yet"
    return ProblemError(errors.NotFound, f"There is no such {thing}. Known: {listed}.", known=names)


def unauthenticated() -> ProblemError:
    """No key, or one that is unknown, disabled or expired: one answer for all."""
    return ProblemError(
        errors.Unauthenticated,
        "A valid API key is needed: send it as `Authorization: Bearer ol_...`.",
        headers={"WWW-Authenticate": 'Bearer realm="overline"'},
    )


def not_accepted(failure: AuthFailure) -> ProblemError:
    """A token that was not accepted: which way it failed is told only to who holds a good one."""
    if failure.reason not in ("address", "endpoint"):
        return unauthenticated()
    return ProblemError(
        errors.Forbidden, "This key may not be used from this address, or not at this endpoint."
    )


def forbidden(scope: str) -> ProblemError:
    """The key is valid and lacks the scope."""
    return ProblemError(
        errors.Forbidden, f"This key does not have the scope `{scope}`.", scope=scope
    )


def invalid(pointer: str, code: str, detail: str, *, where: Location = "body") -> ProblemError:
    """One field of the request cannot be used."""
    problem = FieldProblem.model_validate(
        {"pointer": pointer, "in": where, "code": code, "detail": detail}
    )
    return ProblemError(errors.InvalidRequest, f"{pointer}: {detail}", errors=(problem,))


_OUTAGES: Mapping[Part, type[errors.OutageError]] = {
    "database": errors.DatabaseDown,
    "temporal": errors.OrchestratorDown,
    "triton": errors.EngineDown,
}


def unavailable(part: Part, *, retry_after_s: int = 2) -> ProblemError:
    """A part behind the API does not answer.

    Args:
        part: Which.
        retry_after_s: When it is worth trying again, in seconds.
    """
    return ProblemError(
        _OUTAGES[part],
        f"The part `{part}` does not answer at present; try again in {retry_after_s} s.",
        headers={"Retry-After": str(retry_after_s)},
        part=part,
        retry_after_s=retry_after_s,
    )


def request_id_of(request: Request) -> str:
    """Return the id that the edge gave to this request."""
    return str(request.scope.get("state", {}).get("request_id", ""))


def problem_response(
    request_id: str,
    kind: type[errors.OverlineError],
    detail: str,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    **members: Any,
) -> Response:
    """Render a problem document; see `ProblemError` for the arguments."""
    problem = Problem(
        type=f"urn:overline:problem:{kind.code}",
        title=kind.title,
        status=status or kind.status,
        code=kind.code,
        detail=detail,
        request_id=request_id,
        **members,
    )
    return JSONResponse(
        problem.model_dump(mode="json", exclude_none=True, by_alias=True),
        status_code=problem.status,
        headers=dict(headers or {}),
        media_type=PROBLEM_MEDIA_TYPE,
    )
