"""What a caller is told of limits, in headers and in words."""

from __future__ import annotations

from decimal import Decimal

import pytest

from activities.rate import rate_limited
from api.openai.failures import openai_error
from api.openai.rate_headers import UNLIMITED, rate_headers
from store.refusals import Refusal


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (0.0004, "1ms"), (0.12, "120ms"), (6.5, "6.5s"), (60, "1m0s"), (90.25, "1m30.25s")],
)
def test_times_are_written_as_openai_writes_them(seconds: float, said: str) -> None:
    rate = {"requests": {"limit": 10, "remaining": 3, "reset_s": seconds}}
    headers = rate_headers(rate)
    assert headers["x-ratelimit-reset-requests"] == said
    assert headers["x-ratelimit-limit-requests"] == "10"
    assert headers["x-ratelimit-remaining-requests"] == "3"
    assert headers["x-ratelimit-limit-tokens"] == str(UNLIMITED)


def refusal(**rate: object) -> Refusal:
    plain = {
        "measure": "output_tokens",
        "limit": 100,
        "model": "mock*",
        "needed": 300,
        "never": False,
        "retry_after_s": 7,
        "tokens": {"limit": 100, "remaining": 4, "reset_s": 57.6},
    }
    return Refusal("rate_limited", "team", None, None, None, Decimal(0), rate=plain | rate)


def test_a_refusal_says_when_to_come_back() -> None:
    error = openai_error(rate_limited(refusal()))
    assert (error.status, error.code, error.type) == (
        429,
        "rate_limit_exceeded",
        "rate_limit_error",
    )
    assert error.headers["Retry-After"] == "7"
    assert error.headers["x-should-retry"] == "true"
    assert error.headers["x-ratelimit-remaining-tokens"] == "4"
    assert error.headers["x-ratelimit-reset-tokens"] == "57.6s"
    assert error.facts["measure"] == "output_tokens"
    assert "100 output tokens a minute of mock*" in error.message


def test_what_never_fits_is_not_tried_again() -> None:
    error = openai_error(rate_limited(refusal(never=True, retry_after_s=60)))
    assert error.headers["x-should-retry"] == "false"
    assert "may need 300" in error.message
