"""Whatever passes a route is told from one place: in OpenAI's words, or as a problem document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import FastAPI, Query

from api.error_handlers import add_error_handlers
from inference.errors import EngineBusy, EngineUnavailable, Told
from store.errors import DatabaseUnavailable, Fenced, KeyRestricted
from workflows import errors

Ask = Callable[..., Any]

LIMITED: dict[str, Any] = {
    "requests_limit": 1,
    "requests_remaining": 0,
    "requests_reset_s": 60,
    "retry_after_s": 60,
    "never": 0,
}


@pytest.fixture
def ask() -> Ask:
    """Asks routes that raise what they are given."""
    app = FastAPI(redirect_slashes=False)
    add_error_handlers(app)
    raised: list[Exception] = []

    @app.post("/v1/embeddings")
    @app.post("/v1/tasks")
    async def fails() -> None:
        raise raised.pop()

    @app.get("/v1/batches")
    async def lists(limit: Annotated[int, Query(ge=1)] = 20) -> None:
        pass

    async def asked(
        error: Exception | None, path: str = "/v1/embeddings", method: str = "POST"
    ) -> httpx2.Response:
        if error is not None:
            raised.append(error)
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://api") as http:
            return await http.request(method, path)

    return asked


@pytest.mark.parametrize(
    ("error", "status", "code", "param", "headers"),
    [
        (EngineUnavailable("gone"), 503, "model_unavailable", None, {"retry-after": "2"}),
        (EngineBusy("x", told=Told(429, retry_after_s=7)), 429, None, None, {"retry-after": "7"}),
        (Fenced("x"), 503, "taken_over", None, {"retry-after": "2"}),
        (DatabaseUnavailable("x"), 503, "database_unavailable", None, {"retry-after": "2"}),
        (KeyRestricted("No."), 403, "insufficient_permissions", None, {"x-should-retry": "false"}),
        (
            errors.NotFound("x", param="model", code="model_not_found"),
            404,
            "model_not_found",
            "model",
            {"x-should-retry": "false"},
        ),
        (
            errors.InvalidRequest("x", param="dimensions", code="unsupported_parameter"),
            400,
            "unsupported_parameter",
            "dimensions",
            {},
        ),
        (errors.Conflict("x", code="idempotency_key_reused"), 422, None, None, {}),
        (
            errors.RateLimited("x", **LIMITED),
            429,
            "rate_limit_exceeded",
            None,
            {"retry-after": "60", "x-should-retry": "true", "x-ratelimit-limit-requests": "1"},
        ),
    ],
)
async def test_a_failure_is_the_same_by_whatever_way_it_leaves(
    ask: Ask, error: Exception, status: int, code: str | None, param: str | None, headers: Any
) -> None:
    answer = await ask(error)
    told = answer.json()["error"]
    assert (answer.status_code, told["param"]) == (status, param)
    assert code in (None, told["code"])
    assert headers.items() <= dict(answer.headers).items()


async def test_a_spent_budget_has_its_numbers(ask: Ask) -> None:
    answer = await ask(errors.BudgetExceeded("x", scope="key", limit_usd="1", spent_usd="1"))
    told = answer.json()["error"]
    assert (answer.status_code, told["scope"], told["limit_usd"]) == (402, "key", "1")


async def test_our_own_routes_answer_problem_documents(ask: Ask) -> None:
    for error, status, code in (
        (errors.NotFound("x", param="model", code="model_not_found"), 404, "OVL-1004"),
        (DatabaseUnavailable("x"), 503, "OVL-4001"),
        (KeyRestricted("x"), 403, "OVL-2003"),
        (EngineUnavailable("x"), 503, "OVL-4003"),
    ):
        answer = await ask(error, "/v1/tasks")
        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_a_wrong_method_is_not_bad_json(ask: Ask) -> None:
    answer = await ask(None, method="GET")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["code"] == "method_not_supported"


async def test_a_wrong_parameter_of_the_url_is_named(ask: Ask) -> None:
    answer = await ask(None, "/v1/batches?limit=0", "GET")
    told = answer.json()["error"]
    assert (answer.status_code, told["code"], told["param"]) == (400, "invalid_value", "limit")
