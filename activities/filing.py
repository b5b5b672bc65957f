"""What filing a task takes besides its request: screening, a digest, what its first call costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from activities.dependencies import Dependencies
from safety.policy import Place
from store.catalogue import Catalogue
from store.identity import Principal
from store.pricing import models_of, worst_case_usd
from store.screened_tasks import TaskScreening
from store.screening import NewTask
from workflows.contracts import TaskRequest, tool_call_tokens
from workflows.errors import ContentBlocked
from workflows.planning import first_turn
from workflows.screening import filed_as, texts_of, with_texts

__all__ = ["Screened", "first_call_usd", "screened_task"]


@dataclass(frozen=True)
class Screened:
    """A task that a worker files, as it is filed.

    Attributes:
        request: With the policy it was screened by, if one holds.
        filed: What is filed with it.
    """

    request: TaskRequest
    filed: TaskScreening | None = None


async def screened_task(
    deps: Dependencies, payer: Principal, task_id: UUID, request: TaskRequest
) -> Screened:
    """Screen a task that nobody sends at this moment.

    Raises:
        ContentBlocked: A rule blocks it; that is on file.
        PolicyChanged: Another policy holds than the one whose rule blocks it.
    """
    organisation = payer.organisation_id
    texts: dict[Place, Sequence[str]] = {"input": texts_of(request)}
    new = NewTask(organisation, payer.team_id, task_id, texts, payer.key_prefix)
    made = await deps.screening.of_new(new)
    if made is None:
        return Screened(request)
    if made.outcome == "block":
        await deps.screening.refused(
            organisation, payer.team_id, made.version, made.filed.decisions
        )
        raise ContentBlocked(f"rule {made.rule!r} blocks what is asked", rule=made.rule)
    asks = made.rule if made.outcome == "require_approval" else None
    said = with_texts(request, made.texts["input"])
    filed = filed_as(said, version=made.version, scope=task_id, asks=asks, judges=made.judges)
    return Screened(filed, made.filed)


def first_call_usd(catalogue: Catalogue, request: TaskRequest) -> Decimal:
    """Return the most the first call of a task can cost, in USD.

    Raises:
        UnknownName: The catalogue has no such route or model.
        Unpriced: None of the models has a price.
    """
    turn, longest = first_turn(request), request.sampling.max_tokens
    if turn.purpose == "tool_call":
        longest = min(longest, tool_call_tokens(request.tools, turn.parallel))
    models = models_of(catalogue, request.route, request.model)
    return worst_case_usd(catalogue, models, longest)
