"""Layer 06: has this been answered already?"""

from __future__ import annotations

import hashlib

import rfc8785
from pydantic import JsonValue
from temporalio import activity

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.transcript import PROMPT_FORMAT
from observability.metrics import record_cache
from store import cache
from workflows.contracts import INLINE_ANSWER_CHARS, CacheAnswer, LookUpInput, ToolCall, Turn
from workflows.transcript import digest_of

__all__ = ["Cache", "cache_key"]


def cache_key(call: LookUpInput) -> str:
    """Return the key of everything that can change the answer.

    The tenant, the conversation so far, what the turn is for, route or model, retrieval and
    sampling, in canonical JSON (RFC 8785). What changes beneath a call without being part of it,
    the content of collections and the catalogue of models, routes and prices, is compared when
    the entry is read.
    """
    plan = call.plan
    canonical = rfc8785.dumps(
        {
            "organisation": str(call.tenant.organisation_id),
            "prompt_format": PROMPT_FORMAT,
            "transcript": call.transcript_digest,
            "turn": _turn(call.turn),
            "route": plan.route,
            "model": plan.model,
            "tools": [tool.name for tool in plan.tools],
            "collections": sorted(str(collection) for collection in plan.collections),
            "passages": plan.passages,
            "window": plan.limits.max_prompt_tokens,
            # A tool choice is bound by its grammar, whatever the answer must obey.
            "output": (
                plan.output.digest
                if plan.output is not None and call.turn.purpose == "answer"
                else None
            ),
            **({"policy": plan.safety.version} if plan.safety is not None else {}),
            # A tool choice is greedy and short, whatever the answer's sampling. A seed is text:
            # canonical JSON has no integers beyond 2**53.
            "sampling": (
                {**plan.sampling.model_dump(mode="json"), "seed": str(plan.sampling.seed)}
                if call.turn.purpose == "answer"
                else None
            ),
        }
    )
    return hashlib.sha256(canonical).hexdigest()


def _turn(turn: Turn) -> dict[str, JsonValue]:
    """What a turn is for; a choice of one call is keyed as when there was no other."""
    told: dict[str, JsonValue] = turn.model_dump(mode="json")
    if turn.parallel == 1:
        del told["parallel"]
    return told


class Cache:
    """The exact cache."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    @activity.defn(name="cache.look_up")
    @typed_failures
    async def look_up(self, call: LookUpInput) -> CacheAnswer:
        """Return the stored answer of an exactly equal call, or a miss with the key."""
        key = cache_key(call)
        hit = await cache.look_up(
            self._deps.db, call.tenant.organisation_id, key, list(call.plan.collections)
        )
        record_cache(hit is not None)
        if hit is None:
            return CacheAnswer(key=key)
        chosen = hit.tool_call
        return CacheAnswer(
            key=key,
            hit=hit.id,
            model=hit.model,
            answer=hit.text if len(hit.text) <= INLINE_ANSWER_CHARS else None,
            digest=digest_of(hit.text),
            chars=len(hit.text),
            finish_reason=hit.finish_reason,
            tool_call=ToolCall.model_validate(chosen) if isinstance(chosen, dict) else None,
            tool_calls=(
                tuple(map(ToolCall.model_validate, chosen)) if isinstance(chosen, list) else ()
            ),
        )
