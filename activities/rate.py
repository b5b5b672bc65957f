"""The refusal of a limit of rate, in words."""

from __future__ import annotations

from store.refusals import Refusal
from workflows.errors import RateLimited

__all__ = ["rate_limited"]

_MEASURES = {
    "requests": "requests a minute",
    "input_tokens": "input tokens a minute",
    "output_tokens": "output tokens a minute",
    "tokens": "tokens a minute",
    "concurrent_calls": "calls at once",
}


def rate_limited(refusal: Refusal) -> RateLimited:
    """Return what a caller is told: whose limit, of what, and when there is room."""
    rate = refusal.rate
    after = int(rate["retry_after_s"])
    of = f" of {rate['model']}" if rate.get("model") else ""
    measure = _MEASURES[rate["measure"]]
    limit = f"The {refusal.scope}'s limit of {rate['limit']} {measure}{of}"
    message = (
        f"{limit} is smaller than this one call, which may need {rate['needed']}."
        if rate["never"]
        else f"{limit} is reached; there is room again in {after} s."
    )
    facts: dict[str, str | int | None] = {
        "scope": refusal.scope,
        "measure": rate["measure"],
        "limit": int(rate["limit"]),
        "never": int(rate["never"]),
        "retry_after_s": after,
    }
    for what in ("requests", "tokens"):
        told = rate.get(what)
        if isinstance(told, dict):
            facts[f"{what}_limit"] = int(told["limit"])
            facts[f"{what}_remaining"] = int(told["remaining"])
            facts[f"{what}_reset_s"] = str(told["reset_s"])
    return RateLimited(message, **facts)
