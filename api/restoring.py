"""What was taken out of a task's texts, put back for its caller: on the way out and nowhere else.

A text without a token costs nothing more. Every event of a stream has its tokens whole (see
`activities.outgoing`), so each is restored by itself, wherever its reader came in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import UUID

from pydantic import BaseModel

from api.task_views import StepView, TaskView
from safety.redactions import Redactions, may_hold_token
from store.identity import Principal
from store.screening import Screening
from workflows.contracts import Safety

__all__ = [
    "holds_token",
    "redactions_for",
    "restored",
    "restored_step",
    "restored_task",
    "safety_of",
    "scope_for",
]

V = TypeVar("V")


def safety_of(stored: Mapping[str, Any]) -> Safety | None:
    """Return the policy that a task or a map on file keeps to."""
    said = stored.get("safety") or (stored.get("task") or {}).get("safety")
    return None if said is None else Safety.model_validate(said)


def scope_for(caller: Principal, team_id: UUID, stored: Mapping[str, Any]) -> UUID | None:
    """Return whose redactions are a caller's to read of what is on file.

    Args:
        caller: Who reads.
        team_id: Whose it is: keys of other teams read tokens. Turns of a session share what was
            taken out of it, so they are all its team's.
        stored: The request on file.
    """
    safety = safety_of(stored)
    return (
        safety.scope if safety is not None and caller.team_id == (safety.team or team_id) else None
    )


def holds_token(value: Any) -> bool:
    """Tell whether something may hold a token anywhere."""
    if isinstance(value, str):
        return may_hold_token(value)
    if isinstance(value, Mapping):
        return any(holds_token(each) for each in value.values())
    if isinstance(value, list | tuple):
        return any(holds_token(each) for each in value)
    if isinstance(value, BaseModel):
        return any(holds_token(getattr(value, name)) for name in type(value).model_fields)
    return False


async def redactions_for(
    screening: Screening, organisation_id: UUID, scope: UUID | None, value: Any
) -> Redactions | None:
    """Return what its tokens stand for; nothing where there is none to put back."""
    if scope is None or not holds_token(value):
        return None
    redactions, _ = await screening.redactions(organisation_id, scope)
    return redactions


def restored(value: V, redactions: Redactions | None, *, as_json: bool = False) -> V:
    """Return something with what its tokens stand for.

    Args:
        value: Text, JSON, or a view.
        redactions: What was taken out; none: it is returned as it is.
        as_json: Its texts are JSON.
    """
    if redactions is None:
        return value
    made: Any = value
    if isinstance(value, str):
        made = redactions.restore(value, as_json=as_json)
    elif isinstance(value, dict):
        made = {key: restored(each, redactions, as_json=as_json) for key, each in value.items()}
    elif isinstance(value, list | tuple):
        made = type(value)(restored(each, redactions, as_json=as_json) for each in value)
    elif isinstance(value, BaseModel):
        made = value.model_copy(
            update={
                name: restored(getattr(value, name), redactions, as_json=as_json)
                for name in type(value).model_fields
            }
        )
    result: V = made
    return result


def restored_task(view: TaskView, redactions: Redactions | None, *, as_json: bool) -> TaskView:
    """Return a task as its caller reads it; `as_json`: its answer is JSON."""
    if redactions is None:
        return view
    return view.model_copy(
        update={
            "answer": restored(view.answer, redactions, as_json=as_json),
            "preview": restored(view.preview, redactions),
        }
    )


def restored_step(view: StepView, redactions: Redactions | None, *, as_json: bool) -> StepView:
    """Return a step as its caller reads it; `as_json`: its task's answer is JSON."""
    if redactions is None:
        return view
    # What a model says of tools it wants to call is JSON, too.
    as_json = as_json or bool(view.chosen_calls)
    text = restored(view.text, redactions, as_json=as_json)
    return restored(view, redactions).model_copy(update={"text": text})
