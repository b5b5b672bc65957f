"""A map as a caller submits it: one task for each of many inputs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator
from uuid_utils.compat import uuid7

from api.map_start import start_map
from api.on_file import essence_of, on_file
from api.parts import Parts
from api.problems import ProblemError, invalid
from api.screening import screen_map
from api.submission import Accepted, resolve
from store import maps, money, tasks
from store.identity import Principal
from store.pricing import Unpriced, models_of, worst_case_usd
from workflows import errors
from workflows.contracts import Asked, Message, TaskRequest, Tenant, Usd
from workflows.contracts.request import Asking
from workflows.request_digest import RequestDigest, digest_of_request

__all__ = ["MOST_INPUTS", "MapRequest", "WholeLimits", "submit_map"]

MOST_INPUTS = 10_000

Text = Annotated[str, StringConstraints(min_length=1, max_length=1_000_000)]
Conversation = Annotated[tuple[Message, ...], Field(min_length=1, max_length=1000)]


class WholeLimits(Asked):
    """Where a map ends at the latest, with everything answered so far."""

    max_cost_usd: Usd | None = Field(
        default=None,
        gt=0,
        max_digits=18,
        decimal_places=9,
        description="Budget of all inputs together, in USD; none means the budgets above it only.",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Budget of all inputs together, in tokens, prompts and answers; no call begins "
        "once it is used.",
    )
    deadline_seconds: int | None = Field(
        default=None,
        ge=1,
        le=30 * 24 * 3600,
        description="Seconds from the map's start to its end at the latest.",
    )


class MapRequest(Asking):
    """A map: inputs, and what each is asked with, as a task is; `limits` are those of each."""

    inputs: tuple[Text | Conversation, ...] = Field(
        min_length=1,
        max_length=MOST_INPUTS,
        description="At most 10,000 inputs: a text, or the messages of a conversation that ends "
        "with a user message.",
    )
    concurrency: int = Field(
        default=16, ge=1, le=200, description="How many inputs are worked on at a time, at most."
    )
    on_error: Literal["continue", "stop"] = Field(
        default="continue",
        description="When an input fails: `continue` with the others, or `stop`: begin no further "
        "one, and fail.",
    )
    whole: WholeLimits = Field(
        default_factory=WholeLimits, description="Limits of all inputs together."
    )

    @model_validator(mode="after")
    def _questions(self) -> Self:
        for each in self.inputs:
            if not isinstance(each, str) and each[-1].role != "user":
                raise ValueError("the last message of an input must come from the user")
        return self

    def each(self) -> TaskRequest:
        """Return what every input is asked with, for any question."""
        ours = {"inputs", "concurrency", "on_error", "whole"}
        said = self.model_dump(mode="json", exclude_unset=True, exclude=ours)
        return TaskRequest.model_validate({**said, "input": "?"})

    def items(self) -> list[dict[str, Any]]:
        """Return what is special to each input's request.

        Raises:
            ProblemError: One asks for nothing (422).
        """
        made: list[dict[str, Any]] = []
        for number, each in enumerate(self.inputs):
            texts = [each] if isinstance(each, str) else [message.content for message in each]
            if not all(text.strip() for text in texts):
                raise invalid(
                    f"/inputs/{number}", "too_short", "There must be something to answer."
                )
            if isinstance(each, str):
                made.append({"input": each})
            else:
                made.append({"messages": [message.model_dump(mode="json") for message in each]})
        return made


async def submit_map(
    parts: Parts, caller: Principal, request: MapRequest, idempotency_key: str | None
) -> Accepted:
    """Accept a map and start it.

    Raises:
        ProblemError: 402, 404, 409, 422 or 503; as a task.
    """
    items = request.items()
    each, first_max_tokens = await resolve(parts, caller, request.each())
    catalogue = await parts.catalogue.read()
    try:
        models = models_of(catalogue, each.route, each.model)
        first_call = worst_case_usd(catalogue, models, first_max_tokens)
    except Unpriced as unpriced:
        raise ProblemError(errors.ModelUnpriced, str(unpriced)) from None
    if idempotency_key is None:
        parts.require_triton()
    task_id = uuid7()
    digest = RequestDigest.of(parts.sealer, digest_of_request(essence_of(request)), idempotency_key)
    whole = {
        "agent": each.agent,
        "limits": request.whole.model_dump(mode="json"),
        "concurrency": request.concurrency,
        "on_error": request.on_error,
        "total": len(items),
        "webhook": each.webhook.model_dump(mode="json") if each.webhook else None,
    }

    async def file() -> tuple[tasks.Submitted | money.Refusal, dict[str, Any]]:
        screened = await screen_map(parts, caller, task_id, each, items)
        stored = {**whole, "task": screened.task}
        filed = await maps.submit_map(
            parts.database,
            caller,
            task_id=task_id,
            idempotency_key=idempotency_key,
            request_digest=digest.filed,
            input=stored,
            user=each.user,
            tags=dict(each.tags),
            route=each.route,
            worst_case_usd=first_call,
            max_cost_usd=request.whole.max_cost_usd,
            items=screened.items,
            screening=screened.filed,
        )
        return filed, stored

    filed, stored = await parts.screening.filed(caller.organisation_id, caller.team_id, file)
    verdict = await on_file(parts, caller, filed, digest)
    if verdict.created:
        tenant = Tenant(
            organisation_id=caller.organisation_id, team_id=caller.team_id, key_id=caller.key_id
        )
        try:
            parts.require_triton()
            await start_map(parts, tenant, task_id, stored)
        except Exception:
            # Should this fail as well, the map stays accepted and the sweeper starts it.
            await tasks.discard_task(parts.database, caller.organisation_id, task_id)
            raise
    return Accepted(task_id=verdict.task_id, replayed=not verdict.created)
