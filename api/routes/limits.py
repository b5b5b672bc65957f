"""Limits of rate: requests, tokens and calls at once."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.authentication import AdminCaller, parts_of
from api.openapi import answers
from api.parts import Parts
from api.problems import not_found
from store import limits
from store.identity import Principal

__all__ = ["router"]

router = APIRouter(tags=["limits"])

PartsOf = Annotated[Parts, Depends(parts_of)]
_MOST = 10**12

Cap = Annotated[int | None, Field(ge=1, le=_MOST)]


class _Caps(BaseModel):
    """How much; what is not said is not limited."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests_per_minute: Cap = Field(default=None, description="Requests in a minute.")
    input_tokens_per_minute: Cap = Field(default=None, description="Prompt tokens in a minute.")
    output_tokens_per_minute: Cap = Field(default=None, description="Made tokens in a minute.")
    tokens_per_minute: Cap = Field(default=None, description="Both together, in a minute.")
    concurrent_calls: Cap = Field(default=None, description="Calls at once.")

    def caps(self) -> limits.Caps:
        """As the store has them."""
        return limits.Caps(**{name: getattr(self, name) for name in _Caps.model_fields})


class LimitRequest(_Caps):
    """Sets a limit; one there is of the same scope and model is replaced."""

    scope: limits.LimitScope = Field(description="Whose: of a key, a team, the organisation.")
    scope_id: UUID | None = Field(
        default=None, description="Id of the key or team; not needed for the organisation."
    )
    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="A model, a route, or a name that ends in `*`; none: all together.",
    )

    @model_validator(mode="after")
    def _says_something(self) -> LimitRequest:
        if all(getattr(self, name) is None for name in _Caps.model_fields):
            raise ValueError("say at least one of: " + ", ".join(_Caps.model_fields))
        if self.scope != "organisation" and self.scope_id is None:
            raise ValueError(f"say whose: scope_id of the {self.scope}")
        return self


class LimitView(_Caps):
    """A limit, and what is used of it at this moment."""

    id: UUID = Field(description="Id of the limit.")
    scope: limits.LimitScope = Field(description="Whose.")
    scope_id: UUID = Field(description="Id of the key, team or organisation.")
    model: str | None = Field(description="For which model or route; none: all together.")
    used_requests: float = Field(description="Requests of the minute that are used.", ge=0)
    used_input_tokens: float = Field(description="Prompt tokens that are used.", ge=0)
    used_output_tokens: float = Field(description="Made tokens that are used.", ge=0)
    used_tokens: float = Field(description="Both together, in tokens.", ge=0)
    open_calls: int = Field(description="Calls that have a slot.", ge=0)
    created_at: datetime = Field(description="When it was set first, RFC 3339 in UTC.")


class LimitList(BaseModel):
    """All limits of the organisation."""

    model_config = ConfigDict(frozen=True)

    limits: tuple[LimitView, ...] = Field(description="The limits: of keys, of teams, of all.")


class RemovedLimit(BaseModel):
    """A limit that is no more."""

    model_config = ConfigDict(frozen=True)

    id: UUID = Field(description="Id it had.")


@router.get("/v1/limits", responses=answers(), summary="List limits")
async def list_limits(caller: AdminCaller, parts: PartsOf) -> LimitList:
    """List the organisation's limits, with what is used of each."""
    found = await limits.list_limits(parts.database, caller.organisation_id)
    return LimitList(limits=tuple(_view(each) for each in found))


@router.post("/v1/limits", responses=answers(404, body=True), summary="Set a limit")
async def set_limit(caller: AdminCaller, parts: PartsOf, wanted: LimitRequest) -> LimitView:
    """Set what a key, a team or the organisation may use; it holds from the next call on."""
    made = await limits.set_limit(
        parts.database,
        caller.organisation_id,
        actor=_actor(caller),
        scope=wanted.scope,
        scope_id=wanted.scope_id or caller.organisation_id,
        model=wanted.model,
        caps=wanted.caps(),
    )
    if made is None:
        raise not_found(wanted.scope)
    found = await limits.list_limits(parts.database, caller.organisation_id)
    return next(_view(each) for each in found if each.limit_id == made)


@router.delete("/v1/limits/{limit_id}", responses=answers(404), summary="Remove a limit")
async def remove_limit(caller: AdminCaller, parts: PartsOf, limit_id: UUID) -> RemovedLimit:
    """Lift a limit."""
    gone = await limits.remove_limit(
        parts.database, caller.organisation_id, limit_id, actor=_actor(caller)
    )
    if not gone:
        raise not_found("limit")
    return RemovedLimit(id=limit_id)


def _actor(caller: Principal) -> str:
    return f"ol_{caller.key_id.hex}"


def _view(limit: limits.RateLimit) -> LimitView:
    return LimitView.model_validate(
        {
            **{name: getattr(limit.caps, name) for name in _Caps.model_fields},
            "id": limit.limit_id,
            "scope": limit.scope,
            "scope_id": limit.scope_id,
            "model": limit.model,
            "used_requests": limit.used_requests,
            "used_input_tokens": limit.used_input_tokens,
            "used_output_tokens": limit.used_output_tokens,
            "used_tokens": limit.used_tokens,
            "open_calls": limit.open_calls,
            "created_at": limit.created_at,
        }
    )
