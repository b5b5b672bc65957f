"""From a validated request to a running workflow, whatever fails on the way.

    1. the row, with its budgets checked         store: one statement, idempotent by key
    2. the workflow, id `task-<task id>`         Temporal: a second start of it is refused
    3. the row is marked started

If Temporal does not answer at 2 the row is taken back and the caller gets a 503. If this process
dies between 1 and 3 the row stays `accepted`, and the sweeper of any API process starts it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from api.agents import require_schema, with_agent
from api.collection_names import with_collection_ids
from api.map_start import start_map
from api.on_file import essence_of, on_file
from api.orchestrator import Orchestrator
from api.parts import Parts
from api.problems import ProblemError, forbidden, invalid, not_found
from api.screening import Screened, screen_task
from api.tool_pins import max_choice_tokens, with_definitions
from safety.redactions import Redactions
from store import forks, money, tasks, turns
from store.errors import StoreError
from store.identity import Principal, restriction
from store.pricing import UnknownName, Unpriced, models_of, worst_case_usd
from workflows import errors
from workflows.contracts import FiledRequest, LoopState, TaskRequest, Tenant, Turn
from workflows.planning import first_turn, headline, plan_task
from workflows.request_digest import RequestDigest, digest_of_request

__all__ = [
    "Accepted",
    "Inherited",
    "resolve",
    "submit",
    "sweep_unstarted",
]

log = logging.getLogger("overline.api")

_SWEEP_EVERY_S = 5.0


@dataclass(frozen=True)
class Accepted:
    """A task that will run.

    Attributes:
        task_id: Its id.
        replayed: Whether an earlier request with the same idempotency key made it.
    """

    task_id: UUID
    replayed: bool


@dataclass(frozen=True)
class Inherited:
    """What a task takes over from the one it was forked from.

    Attributes:
        parent_task_id: That task.
        from_step: Number of the step it begins with.
        changed: What the caller changed, by name.
        state: Where its loop starts.
        next_turn: What its first call is for.
        tool_result: Takes the place of what the last inherited step's tool answered.
        tool_place: Which of its tools, from 1, where it called several.
        message: Takes the place of what was last said to the other task.
        redactions: What was taken out of the other task's texts.
    """

    parent_task_id: UUID
    from_step: int
    changed: tuple[str, ...]
    state: LoopState
    next_turn: Turn
    tool_result: str | None
    tool_place: int | None = None
    message: str | None = None
    redactions: Redactions | None = None


async def submit(
    parts: Parts,
    caller: Principal,
    request: TaskRequest,
    idempotency_key: str | None,
    *,
    inherited: Inherited | None = None,
) -> Accepted:
    """Accept a task and start it; a fork brings what it has inherited.

    Raises:
        ProblemError: 400, 402, 404, 409, 422 or 503; see the route.
    """
    _require_words(request)
    # What makes a request the same as an earlier one is what it says: an agent named by its name
    # alone may have a new version when the request is repeated.
    said = request
    if inherited is None:
        request = await with_agent(parts, caller, request)
    require_schema(request)
    _require_right_of_way(caller, request)
    catalogue = await parts.catalogue.read()
    try:
        models = models_of(catalogue, request.route, request.model)
        first_call = worst_case_usd(catalogue, models, _first_max_tokens(request, inherited))
    except UnknownName as unknown:
        raise not_found(unknown.kind, known=unknown.known) from None
    except Unpriced as unpriced:
        raise ProblemError(errors.ModelUnpriced, str(unpriced)) from None
    resolved = await with_collection_ids(parts, caller, request)
    if idempotency_key is None:
        # With one, this may be the repetition of a request that was accepted.
        await parts.require_engine(request.route, request.model)
    task_id = uuid7()
    asked = essence_of(resolved if said.agent is None else said)
    pinned = await with_definitions(parts, caller, resolved)
    digest = RequestDigest.of(parts.sealer, _digest(asked, inherited), idempotency_key)
    filed: dict[str, Any] = {
        "task_id": task_id,
        "idempotency_key": idempotency_key,
        "request_digest": digest.filed,
        "user": request.user,
        "tags": dict(request.tags),
        "route": request.route,
        "worst_case_usd": first_call,
        "max_cost_usd": request.limits.max_cost_usd or parts.settings.default_max_cost_usd,
    }
    verdict, stored = await _filed(parts, caller, pinned, filed, inherited, digest)
    if verdict.created:
        state = inherited.state if inherited else None
        await _start_or_take_back(parts, caller, task_id, stored, state)
    return Accepted(task_id=verdict.task_id, replayed=not verdict.created)


async def _filed(
    parts: Parts,
    caller: Principal,
    request: TaskRequest,
    about: Mapping[str, Any],
    inherited: Inherited | None,
    digest: RequestDigest,
) -> tuple[tasks.Submitted, dict[str, Any]]:
    """Screen a task and file it; screen it again if another policy holds by then.

    Returns:
        What became of it, and the request as it is on file.

    Raises:
        ProblemError: It is refused.
    """

    async def file() -> tuple[tasks.Submitted | money.Refusal, dict[str, Any]]:
        screened = await screen_task(
            parts,
            caller,
            about["task_id"],
            request,
            inherited=inherited.redactions if inherited else None,
            tool_result=inherited.tool_result if inherited else None,
            message=inherited.message if inherited else None,
        )
        stored = screened.request.model_dump(mode="json")
        filed = {**about, "input": stored}
        return await _file(parts, caller, filed, screened, inherited), stored

    verdict, stored = await parts.screening.filed(caller.organisation_id, caller.team_id, file)
    return await on_file(parts, caller, verdict, digest), stored


async def _file(
    parts: Parts,
    caller: Principal,
    filed: dict[str, Any],
    screened: Screened,
    inherited: Inherited | None,
) -> tasks.Submitted | money.Refusal:
    if inherited is None:
        return await tasks.submit_task(parts.database, caller, **filed, screening=screened.filed)
    return await forks.fork_task(
        parts.database,
        caller,
        **filed,
        parent_task_id=inherited.parent_task_id,
        from_step=inherited.from_step,
        changed=list(inherited.changed),
        state=inherited.state.model_dump(mode="json"),
        tool_result=screened.tool_result,
        tool_place=inherited.tool_place,
        message=screened.message,
        screening=screened.filed,
    )


async def resolve(parts: Parts, caller: Principal, request: TaskRequest) -> tuple[TaskRequest, int]:
    """Look up every name in a request that is to be filed later.

    Returns:
        The request as it can be filed, and the longest first answer, in tokens.

    Raises:
        ProblemError: 404, 422; as a submission.
    """
    _require_words(request)
    request = await with_agent(parts, caller, request)
    require_schema(request)
    _require_right_of_way(caller, request)
    await _require_allowed(parts, caller, request)
    try:
        models_of(await parts.catalogue.read(), request.route, request.model)
    except UnknownName as unknown:
        raise not_found(unknown.kind, known=unknown.known) from None
    resolved = await with_collection_ids(parts, caller, request)
    return await with_definitions(parts, caller, resolved), _first_max_tokens(request, None)


def _first_max_tokens(request: TaskRequest, inherited: Inherited | None) -> int:
    """Longest answer of the task's first call, in tokens."""
    wanted = request.sampling.max_tokens
    turn = inherited.next_turn if inherited else first_turn(request)
    longest = max_choice_tokens(request.tools, turn.parallel)
    return min(wanted, longest) if turn.purpose == "tool_call" else wanted


def _require_words(request: TaskRequest) -> None:
    """Blank text asks for nothing; the schema can only see that it is not empty."""
    if request.input is not None and not request.input.strip():
        raise invalid("/input", "too_short", "There must be something to answer.")
    for index, message in enumerate(request.messages):
        if not message.content.strip():
            raise invalid(
                f"/messages/{index}/content", "too_short", "The message must not be blank."
            )


async def _require_allowed(parts: Parts, caller: Principal, request: TaskRequest) -> None:
    """Refuse now what the database would refuse when the task is filed.

    Raises:
        ProblemError: The key is restricted to other models, routes or tools (403).
    """
    what = await restriction(
        parts.database,
        caller.organisation_id,
        caller.key_id,
        kind="agent",
        route=request.route,
        asked=request.model_dump(mode="json", include={"model", "tools"}),
    )
    if what is not None:
        raise ProblemError(errors.Forbidden, f"This key may not use this {what}.")


def _require_right_of_way(caller: Principal, request: TaskRequest) -> None:
    """Going before all other teams is not for everybody who says so.

    Raises:
        ProblemError: 403.
    """
    if request.priority == "interactive" and "interactive" not in caller.scopes:
        raise forbidden("interactive")


def _digest(stored: Mapping[str, Any], inherited: Inherited | None) -> str:
    said: Any = stored
    if inherited is not None:
        parent = str(inherited.parent_task_id)
        said = [stored, parent, inherited.from_step, inherited.tool_result]
        if inherited.tool_place is not None:
            said.append(inherited.tool_place)
        if inherited.message is not None:
            said.append(inherited.message)
    return digest_of_request(said)


async def _start_or_take_back(
    parts: Parts,
    caller: Principal,
    task_id: UUID,
    stored: Mapping[str, Any],
    state: LoopState | None,
) -> None:
    try:
        await parts.require_engine(stored["route"], stored["model"])
        await _start(parts, _tenant(caller), task_id, stored, state)
    except Exception:
        # Should this fail as well, the task stays accepted and the sweeper starts it.
        await tasks.discard_task(parts.database, caller.organisation_id, task_id)
        raise


async def _start(
    parts: Parts,
    tenant: Tenant,
    task_id: UUID,
    stored: Mapping[str, Any],
    state: LoopState | None,
    before: tuple[str, int] | None = None,
) -> None:
    task = plan_task(task_id, tenant, FiledRequest.model_validate(stored), before)
    task = task.model_copy(update={"state": state})
    run_id = await Orchestrator(parts.temporal, parts.settings).start_task(
        task, headline=headline(task)
    )
    try:
        await tasks.mark_started(parts.database, tenant.organisation_id, task_id, run_id)
    except StoreError:
        # The workflow runs; the sweeper marks the row when the database is back.
        log.warning("task was started and not marked", extra={"task_id": str(task_id)})


async def sweep_unstarted(parts: Parts) -> None:
    """Start tasks whose API process died between accepting and starting them; runs for ever."""
    while True:
        await asyncio.sleep(_SWEEP_EVERY_S)
        try:
            left_behind = await tasks.unstarted_tasks(parts.database)
        except StoreError:
            continue
        for task in left_behind:
            try:
                if task.kind == "map":
                    await start_map(parts, _tenant(task), task.task_id, task.input)
                else:
                    await _start(
                        parts,
                        _tenant(task),
                        task.task_id,
                        task.input,
                        await _state_of(parts, task),
                        await turns.base_of(parts.database, task.organisation_id, task.task_id),
                    )
                log.info("started a task left behind", extra={"task_id": str(task.task_id)})
            except Exception as exc:
                # One task that cannot be started must not keep the others from it.
                log.warning(
                    "a task left behind could not be started: %s",
                    type(exc).__name__,
                    extra={"task_id": str(task.task_id)},
                )


async def _state_of(parts: Parts, task: tasks.UnstartedTask) -> LoopState | None:
    """Where a task's loop starts, if it was forked from another one."""
    state = await forks.state_of(parts.database, task.organisation_id, task.task_id)
    return None if state is None else LoopState.model_validate(state)


def _tenant(owner: Principal | tasks.UnstartedTask) -> Tenant:
    return Tenant(organisation_id=owner.organisation_id, team_id=owner.team_id, key_id=owner.key_id)
