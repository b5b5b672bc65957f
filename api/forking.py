"""Fork a task: the same question with a change, from one of its steps on.

The finished steps before it are taken over as they are and cost nothing again. The loop's state is
computed from them by walking the loop itself, so an unchanged fork asks exactly what its parent
asked next: the cache knows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from pydantic import Field, ValidationError, model_validator

from api.parts import Parts
from api.problems import ProblemError, invalid
from api.restoring import scope_for
from api.submission import Accepted, Inherited, submit
from inference.json_schema import objection
from store import messages, tasks, turns
from store.identity import Principal
from workflows.contracts import (
    Asked,
    FiledRequest,
    Limits,
    Message,
    Name,
    Sampling,
    TaskRequest,
    Tenant,
    ToolCall,
)
from workflows.inheritance import CannotInherit, PastCall, PastMessage, PastStep, inherit
from workflows.output import schema_text
from workflows.planning import plan_task

__all__ = ["ForkRequest", "fork"]

_FINISHED = frozenset({"succeeded", "cached"})


class ForkRequest(Asked):
    """From which step to rerun a task, and what is different this time."""

    from_step: int = Field(
        ge=1,
        le=10_000,
        description="Number of the first step to run anew; those before it are inherited. The "
        "number after the last finished step goes on from there.",
    )
    model: Name | None = Field(default=None, description="Use exactly this registered model.")
    route: Name | None = Field(
        default=None, description="Let this route choose the model, instead of what was asked for."
    )
    prompt: str | None = Field(
        default=None,
        min_length=1,
        max_length=1_000_000,
        description="Takes the place of the question: the newest user message. Characters.",
    )
    messages: tuple[Message, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="Takes the place of the whole conversation; ends with a user message.",
    )
    system: str | None = Field(
        default=None,
        min_length=1,
        max_length=100_000,
        description="Takes the place of the system prompt. Characters.",
    )
    tool_result: str | None = Field(
        default=None,
        min_length=1,
        max_length=100_000,
        description="Takes the place of what the tool of the step before `from_step` answered. "
        "Characters.",
    )
    tool_call_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=500,
        description="Where that step called several tools: which call `tool_result` answers, by "
        "its `id` in the step's `chosen_calls`.",
    )
    sampling: Sampling | None = Field(
        default=None, description="The fields of it that are given take the place of the parent's."
    )
    limits: Limits | None = Field(
        default=None, description="The fields of it that are given take the place of the parent's."
    )

    @model_validator(mode="after")
    def _one_question(self) -> ForkRequest:
        if self.prompt is not None and self.messages is not None:
            raise ValueError("give either prompt or messages")
        if self.messages is not None and self.messages[-1].role != "user":
            raise ValueError("the last message must come from the user")
        if self.tool_call_id is not None and self.tool_result is None:
            raise ValueError("tool_call_id goes with tool_result")
        return self

    def changed(self) -> tuple[str, ...]:
        """Names of what is different this time."""
        said = self.model_dump(exclude={"from_step", "tool_call_id"}, exclude_none=True)
        return tuple(said)


async def fork(
    parts: Parts,
    caller: Principal,
    parent: tasks.Task,
    wanted: ForkRequest,
    idempotency_key: str | None,
) -> Accepted:
    """File and start a task that goes on from a step of another one.

    Raises:
        ProblemError: 422 with a pointer when the step cannot be forked from; else as `submit`.
    """
    organisation, parent_id = caller.organisation_id, parent.task_id
    steps = await tasks.list_steps(parts.database, organisation, parent_id)
    said: list[PastMessage] = []
    earlier: tuple[str, int] | None = None
    if wanted.messages is None:
        said = [
            PastMessage(each.number, each.content, each.at_step)
            for each in await messages.list_messages(parts.database, organisation, parent_id)
            if each.at_step is not None and each.at_step <= wanted.from_step
        ]
        earlier = await turns.base_of(parts.database, organisation, parent_id)
    if parent.kind == "map":
        raise invalid("/from_step", "no_such_step", "A map has no steps; fork one of its tasks.")
    request = changed_request(FiledRequest.model_validate(parent.input), wanted, told=bool(said))
    if said and wanted.prompt is not None:
        said[-1] = replace(said[-1], content=wanted.prompt)
    inherited = inheritance(
        parent_id, _tenant(caller), request, steps, wanted, said=said, earlier=earlier
    )
    if (scope := scope_for(caller, parent.team_id, parent.input)) is not None:
        redactions, _ = await parts.screening.redactions(organisation, scope)
        inherited = replace(inherited, redactions=redactions)
    return await submit(parts, caller, request, idempotency_key, inherited=inherited)


def changed_request(parent: TaskRequest, wanted: ForkRequest, *, told: bool = False) -> TaskRequest:
    """Return the parent's request with the change.

    Args:
        parent: The parent's request.
        wanted: The change.
        told: Something was said to the parent, so that the newest user message is not in its
            request.

    Raises:
        ProblemError: Parent and change contradict each other (422).
    """
    # It is screened anew, by the policy of today.
    data = parent.model_dump(mode="json", exclude={"safety"})
    if wanted.route is not None:
        data |= {"route": wanted.route, "model": None}
    if wanted.model is not None:
        data["model"] = wanted.model
    if wanted.system is not None:
        data["system"] = wanted.system
    if wanted.messages is not None:
        said = [message.model_dump(mode="json") for message in wanted.messages]
        data |= {"input": None, "messages": said}
    elif wanted.prompt is not None and not told:
        if parent.input is not None:
            data["input"] = wanted.prompt
        else:
            data["messages"][-1]["content"] = wanted.prompt
    for name in ("sampling", "limits"):
        part = getattr(wanted, name)
        if part is not None:
            data[name] |= part.model_dump(mode="json", exclude_unset=True)
    try:
        return TaskRequest.model_validate(data)
    except ValidationError as error:
        pointer = "".join(f"/{part}" for part in error.errors()[0]["loc"][:1])
        raise invalid(
            pointer, "contradiction", "This does not go together with what the parent has."
        ) from None


def inheritance(
    parent_task_id: UUID,
    tenant: Tenant,
    request: TaskRequest,
    steps: Sequence[tasks.StepDetail],
    wanted: ForkRequest,
    *,
    said: Sequence[PastMessage] = (),
    earlier: tuple[str, int] | None = None,
) -> Inherited:
    """Return what a fork takes over.

    Args:
        parent_task_id: The parent.
        tenant: Who forks.
        request: The fork's request.
        steps: The parent's steps.
        wanted: The change.
        said: What was said to the parent before its step `from_step`.
        earlier: Digest and length of what was said in the parent's session before it.

    Raises:
        ProblemError: There is no such step to go on from (422, `/from_step`), or no tool result
            to replace (422, `/tool_result`), or not which of several (422, `/tool_call_id`).
    """
    before = [step for step in steps if step.step < wanted.from_step]
    unfinished = next((step.step for step in before if step.status not in _FINISHED), None)
    if unfinished is not None:
        raise _no_such_step(
            "not_finished", f"Step {unfinished} has not finished; fork from it, or from before it."
        )
    if len(before) < wanted.from_step - 1:
        raise _no_such_step(
            "no_such_step",
            f"The task has {len(before)} finished steps: {len(before) + 1} is the last to go on "
            "from.",
        )
    schema = schema_text(request.output_schema) if request.output_schema is not None else None
    past = [_past(step, schema) for step in before]
    place: int | None = None
    if wanted.tool_result is not None:
        number = _replaced(before, wanted.tool_call_id)
        calls = list(past[-1].calls)
        calls[number] = replace(calls[number], result=wanted.tool_result)
        past[-1] = replace(past[-1], calls=tuple(calls))
        place = calls[number].place
    # The id is of no matter here: neither digest nor plan depends on it.
    task = plan_task(parent_task_id, tenant, _without_collections(request), earlier)
    try:
        state, turn = inherit(task, past, said)
    except CannotInherit as error:
        words = (
            f"Step {error.step} is the answer: no step follows it."
            if error.why == "answered"
            else f"A tool that step {error.step} called has not answered; fork from that step, or "
            "give its `tool_result`."
        )
        code = "no_such_step" if error.why == "answered" else "not_finished"
        raise _no_such_step(code, words) from None
    return Inherited(
        parent_task_id=parent_task_id,
        from_step=wanted.from_step,
        changed=wanted.changed(),
        state=state,
        next_turn=turn,
        tool_result=wanted.tool_result,
        tool_place=place,
        message=wanted.prompt if said else None,
    )


def _replaced(before: Sequence[tasks.StepDetail], call_id: str | None) -> int:
    """Return which of the last step's calls gets another result, from 0."""
    chosen = before[-1].chosen if before else []
    if not chosen:
        raise invalid("/tool_result", "no_tool_call", "The step before `from_step` called no tool.")
    made = [call.call_id for call in chosen if call.call_id is not None]
    if chosen[0].place is None and call_id is None:
        return 0
    if call_id is None and len(made) == 1:
        call_id = made[0]
    if call_id is None:
        raise invalid(
            "/tool_call_id",
            "missing",
            "The step before `from_step` called several tools: say which call is meant, one of "
            f"{', '.join(made)}.",
        )
    if call_id not in made:
        raise invalid(
            "/tool_call_id", "no_tool_call", "The step before `from_step` made no call of that id."
        )
    return next(n for n, call in enumerate(chosen) if call.call_id == call_id)


def _no_such_step(code: str, words: str) -> ProblemError:
    return invalid("/from_step", code, words)


def _past(step: tasks.StepDetail, schema: str | None) -> PastStep:
    return PastStep(
        text=step.text or "",
        model=step.model or "",
        calls=tuple(
            PastCall(
                ToolCall(name=call.name, arguments=call.arguments), call.result, place=call.place
            )
            for call in step.chosen
        ),
        kept=step.answered,
        rejected=(
            objection(schema, step.text or "", step.finish_reason or "stop") if schema else None
        ),
    )


def _without_collections(request: TaskRequest) -> TaskRequest:
    return request.model_copy(update={"collections": ()})


def _tenant(caller: Principal) -> Tenant:
    return Tenant(
        organisation_id=caller.organisation_id, team_id=caller.team_id, key_id=caller.key_id
    )
