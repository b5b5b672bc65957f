"""What went wrong with a call, as its caller is told."""

from __future__ import annotations

import logging
import math
from typing import Any

from api.openai.errors import OpenAIError, error_of
from api.openai.rate_headers import rate_headers
from api.problems import ProblemError
from inference.errors import EngineBusy, EngineDenied, EngineError, EngineFailed, RequestRefused
from store.errors import DatabaseUnavailable, Fenced, KeyRestricted
from workflows import errors

__all__ = ["openai_error"]

log = logging.getLogger("overline.api")

_REUSED = 422
#: Longer than this the SDKs do not wait at all.
_LONGEST_RETRY_S = 110


def openai_error(error: BaseException) -> OpenAIError:
    """Return a failure of a call in OpenAI's words; what nobody foresaw says nothing of itself."""
    match error:
        case OpenAIError():
            return error
        case ProblemError():
            return _of_problem(error)
        case errors.OverlineError():
            return _of_ours(error)
        case EngineError():
            return _of_engine(error)
        case KeyRestricted():
            return error_of(errors.Forbidden, str(error))
        case DatabaseUnavailable():
            return error_of(
                errors.DatabaseDown, "The database does not answer at present; try again."
            )
        case Fenced():
            return error_of(
                errors.EngineDown,
                "Another process has taken this call over; read it by its id, or repeat it with "
                "its Idempotency-Key.",
                code="taken_over",
            )
        case _:
            log.error("unhandled %s in a call", type(error).__qualname__)
            return error_of(
                errors.Internal,
                "Something went wrong on our side. It was logged under this request id.",
            )


def _of_problem(problem: ProblemError) -> OpenAIError:
    fields = problem.members.get("errors") or ()
    known = problem.members.get("known")
    return error_of(
        problem.kind,
        problem.detail,
        status=problem.status,
        param=_param_of(fields[0].pointer) if fields else None,
        code="method_not_supported" if problem.status == 405 else None,
        headers=problem.headers,
        facts={"known": list(known)} if known else None,
    )


def _param_of(pointer: str) -> str | None:
    param = ""
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        param += f"[{name}]" if name.isdigit() else f".{name}" if param else name
    return param or None


def _of_ours(error: errors.OverlineError) -> OpenAIError:
    facts = {name: value for name, value in error.facts.items() if value is not None}
    param, code = facts.pop("param", None), facts.pop("code", None)
    if isinstance(error, errors.RateLimited):
        return _limited(error, facts)
    after = facts.pop("retry_after_s", None)
    return error_of(
        type(error),
        error.message,
        # Asked again, it would be as wrong: a conflict that time does not end.
        status=_REUSED if code == "idempotency_key_reused" else None,
        param=None if param is None else str(param),
        code=None if code is None else str(code),
        headers=(None if after is None else {"Retry-After": str(after), "x-should-retry": "true"}),
        facts=facts,
    )


def _limited(error: errors.RateLimited, facts: dict[str, Any]) -> OpenAIError:
    """Return the refusal of a limit, with the headers that say when there is room."""
    rate: dict[str, dict[str, Any]] = {}
    for what in ("requests", "tokens"):
        told = {
            name: facts.pop(f"{what}_{name}", None) for name in ("limit", "remaining", "reset_s")
        }
        if told["limit"] is not None:
            rate[what] = told
    after = min(_LONGEST_RETRY_S, int(facts["retry_after_s"]))
    never = bool(facts.pop("never"))
    return error_of(
        errors.RateLimited,
        error.message,
        headers={
            "Retry-After": str(after),
            "x-should-retry": "false" if never else "true",
            **rate_headers(rate),
        },
        facts=facts | {"retry_after_s": after},
    )


def _of_engine(error: EngineError) -> OpenAIError:
    told = error.told
    if isinstance(error, RequestRefused):
        too_long = error.code == "prompt_too_long"
        return error_of(
            errors.RequestRefused,
            (told.message if told else "") or str(error),
            param=told.param if told else None,
            code="context_length_exceeded" if too_long else (told and told.code) or error.code,
        )
    if isinstance(error, EngineBusy):
        after = told.retry_after_s if told else None
        seconds = min(_LONGEST_RETRY_S, max(1, math.ceil(1 if after is None else after)))
        return OpenAIError(
            429,
            (told.message if told else "") or "The model's engine is at its own limit.",
            code=(told and told.code) or "rate_limit_exceeded",
            headers={"Retry-After": str(seconds)},
        )
    if isinstance(error, EngineDenied):
        return error_of(
            errors.EngineDown,
            "The model's upstream does not take our request; its operator must look.",
            code="upstream_denied",
        )
    if isinstance(error, EngineFailed):
        status = told.status if told and told.status and told.status >= 500 else 502
        return OpenAIError(
            status,
            (told.message if told else "") or "The model's engine broke on this request.",
            code=(told and told.code) or "engine_failed",
            type="server_error",
        )
    status = 504 if error.code in ("idle_timeout", "deadline") else 503
    return error_of(
        errors.EngineDown,
        "The model's engine does not answer at present; try again.",
        status=status,
        code="model_unavailable",
    )
