"""Agents: what tasks may name instead of saying it, in versions that never change."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from api.agents import find_agent, require_schema
from api.authentication import Caller, parts_of
from api.json_body import json_body, request_body
from api.openapi import answers
from api.parts import Parts
from api.problems import not_found
from api.sub_agents import require_no_cycle
from store import agents, retrieval
from store.identity import Principal
from store.pricing import UnknownName, models_of
from workflows.agents import AgentSpec

__all__ = ["router"]

router = APIRouter(tags=["agents"])

PartsOf = Annotated[Parts, Depends(parts_of)]

_EXAMPLE = {
    "name": "research",
    "description": "Computes and reads before it answers.",
    "system": "Answer briefly. Compute with the calculator.",
    "tools": [{"name": "calculator"}],
    "limits": {"max_steps": 6, "max_cost_usd": "0.05"},
}


class NewAgent(AgentSpec):
    """An agent to apply."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")] = Field(
        description="Name, unique in the organisation: letters, digits, `.`, `_`, `-`; at most "
        "128 characters."
    )


class Spec(AgentSpec):
    """What an agent is, every field with its value."""

    output_schema: dict[str, Any] | None = Field(
        default=None, description="JSON Schema that its answers must obey."
    )


class Agent(BaseModel):
    """One version of an agent."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="Name, unique in the organisation.")
    version: int = Field(description="Version, from 1.", ge=1)
    spec: Spec = Field(description="What it is.")
    created_at: datetime = Field(description="When this version was made, RFC 3339 in UTC.")
    created_by: UUID = Field(description="API key that made it.")
    archived_at: datetime | None = Field(
        description="Since when no new task may name it, RFC 3339 in UTC; none: it may."
    )


class AgentApplied(Agent):
    """The version that says what was applied."""

    created: bool = Field(description="Whether it is new; false: it said so already.")


class AgentList(BaseModel):
    """Agents, or versions of one."""

    model_config = ConfigDict(frozen=True)

    agents: tuple[Agent, ...] = Field(description="By name; versions of one: newest first.")


@router.post(
    "/v1/agents",
    status_code=201,
    responses=answers(404, body=True)
    | {200: {"description": "The newest version says this already.", "model": AgentApplied}},
    openapi_extra=request_body(NewAgent, _EXAMPLE),
    summary="Apply an agent",
)
async def apply_agent(
    caller: Caller,
    parts: PartsOf,
    body: Annotated[NewAgent, Depends(json_body(NewAgent))],
    response: Response,
) -> AgentApplied:
    """Make an agent, or its next version if what it says has changed.

    The same again answers the existing version with 200. A route, model or collection that does
    not exist is a 404 that names those there are; agents that would ask each other for ever are a
    422 that names the circle.
    """
    require_schema(body)
    await _require_known(parts, caller, body)
    await require_no_cycle(parts, caller, body.name, body.tools)
    spec = AgentSpec.model_validate(body.model_dump(exclude={"name"}, exclude_unset=True))
    version, created = await agents.apply_agent(
        parts.database,
        caller.organisation_id,
        name=body.name,
        spec=spec.stored(),
        created_by=caller.key_id,
    )
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/agents/{body.name}?version={version}"
    stored = await find_agent(parts, caller, body.name, version)
    return AgentApplied(**_fields(stored), created=created)


@router.get("/v1/agents", responses=answers(), summary="List agents")
async def list_agents(caller: Caller, parts: PartsOf) -> AgentList:
    """List the organisation's agents in use by name, each in its newest version."""
    found = await agents.list_agents(parts.database, caller.organisation_id)
    return AgentList(agents=tuple(_agent(item) for item in found))


@router.get("/v1/agents/{name}", responses=answers(404), summary="Read an agent")
async def get_agent(
    caller: Caller,
    parts: PartsOf,
    name: str,
    version: Annotated[
        int | None, Query(ge=1, lt=2**31, description="This version; none: the newest.")
    ] = None,
) -> Agent:
    """Read an agent; an archived one too."""
    return _agent(await find_agent(parts, caller, name, version))


@router.get(
    "/v1/agents/{name}/versions", responses=answers(404), summary="List an agent's versions"
)
async def list_versions(caller: Caller, parts: PartsOf, name: str) -> AgentList:
    """List all versions of an agent, newest first."""
    await find_agent(parts, caller, name)
    found = await agents.list_versions(parts.database, caller.organisation_id, name)
    return AgentList(agents=tuple(_agent(item) for item in found))


@router.post("/v1/agents/{name}/archive", responses=answers(404), summary="Archive an agent")
async def archive_agent(caller: Caller, parts: PartsOf, name: str) -> Agent:
    """Take an agent out of use: no new task may name it, and running ones do not change.

    Nothing is deleted; applying it again brings it back. Archiving twice is no error.
    """
    await agents.archive_agent(parts.database, caller.organisation_id, name)
    return _agent(await find_agent(parts, caller, name))


async def _require_known(parts: Parts, caller: Principal, spec: AgentSpec) -> None:
    """Refuse what no task of the agent could be: better now than when somebody needs it."""
    try:
        models_of(await parts.catalogue.read(), spec.route, spec.model)
    except UnknownName as unknown:
        raise not_found(unknown.kind, known=unknown.known) from None
    for name in spec.collections:
        found = await retrieval.get_collection_by_name_or_id(
            parts.database, caller.organisation_id, name
        )
        if found is None:
            known = await retrieval.list_collections(parts.database, caller.organisation_id)
            raise not_found("collection", known=[collection.name for collection in known])


def _agent(item: agents.Agent) -> Agent:
    return Agent(**_fields(item))


def _fields(item: agents.Agent) -> dict[str, Any]:
    spec = AgentSpec.model_validate(item.spec)
    return {
        "name": item.name,
        "version": item.version,
        "spec": Spec.model_validate(spec.model_dump()),
        "created_at": item.created_at,
        "created_by": item.created_by,
        "archived_at": item.archived_at,
    }
