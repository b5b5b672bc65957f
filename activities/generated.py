"""What a finished generation says across the border, whichever engine made it."""

from __future__ import annotations

from activities.dependencies import Dependencies
from activities.screening import Outcome
from activities.toolbox import parse_choice, parse_choices
from inference.json_schema import objection
from inference.messages import Timings
from inference.usage import TokenUsage
from store.journal import AttemptUsage
from workflows.contracts import INLINE_ANSWER_CHARS, Generated, GenerateInput, Usage
from workflows.transcript import digest_of

__all__ = ["attempt_usage", "generated_of"]


def attempt_usage(used: TokenUsage) -> AttemptUsage:
    """Return what an upstream counted, as the ledger keeps it."""
    return AttemptUsage(
        prompt_tokens=used.prompt_tokens,
        cached_tokens=used.cached_tokens,
        completion_tokens=used.completion_tokens,
        source=used.source,
        reasoning_tokens=used.reasoning_tokens,
    )


async def generated_of(
    deps: Dependencies,
    call: GenerateInput,
    *,
    text: str,
    finish_reason: str,
    usage: Usage,
    schema: str | None,
    epoch: int,
    resumed_tokens: int = 0,
    timings: Timings | None = None,
    outcome: Outcome,
) -> Generated:
    """Return it: a long text stays in the journal, a choice is read, an answer is looked at."""
    turn = call.turn
    choosing = turn.purpose == "tool_call"
    registered = await deps.definitions.of(call.tenant.organisation_id, turn) if choosing else {}
    return Generated(
        model=call.chosen.model,
        finish_reason=finish_reason,
        usage=usage,
        digest=digest_of(text),
        chars=len(text),
        answer=text if not choosing and len(text) <= INLINE_ANSWER_CHARS else None,
        tool_call=(
            parse_choice(text, turn.tools, registered) if choosing and turn.parallel == 1 else None
        ),
        tool_calls=(
            parse_choices(text, turn.tools, registered, parallel=turn.parallel)
            if turn.parallel > 1
            else ()
        ),
        epoch=epoch,
        resumed_tokens=resumed_tokens,
        first_token_ms=timings.first_token_ms if timings else None,
        total_ms=timings.total_ms if timings else None,
        invalid=None if schema is None else objection(schema, text, finish_reason),
        screened=outcome.screened,
        sealed=outcome.sealed,
    )
