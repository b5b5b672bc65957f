"""Registered tools: what agents can call besides the built-in ones."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict, Field

from api.authentication import Caller, parts_of
from api.json_body import json_body, request_body
from api.openapi import answers
from api.orchestrator import Orchestrator
from api.parts import Parts
from api.problems import not_found
from store import audit, blobs, tool_registry
from store.tool_registry import ToolRecord
from workflows.contracts import RegisterInput, Tenant
from workflows.tool_requests import ToolRegistration

__all__ = ["router"]

router = APIRouter(tags=["tools"])

PartsOf = Annotated[Parts, Depends(parts_of)]

_EXAMPLE = {
    "name": "weather",
    "kind": "openapi",
    "url": "https://api.example.com/openapi.json",
    "operations": ["getForecast"],
    "approval": "never",
}


class Tool(BaseModel):
    """A registered tool."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="What a task calls it: `registration.operation`.")
    registration: str = Field(description="The registration it came with.")
    kind: str = Field(description="`openapi` or `mcp`.")
    description: str = Field(description="What its source says it does.")
    input_schema: dict[str, Any] = Field(description="JSON schema of its arguments.")
    definition: str = Field(
        description="SHA-256 of its definition; a task keeps to the one it was submitted with."
    )
    approval: Any = Field(
        description="Which calls wait for a person: `never`, `always`, or "
        "`{when: {argument: pattern}}`."
    )
    timeout_seconds: int = Field(description="Longest time of one attempt, in seconds.")
    max_attempts: int = Field(description="Attempts before the model is told that it failed.")
    created_at: datetime | None = Field(
        description="When this definition was first registered, RFC 3339 in UTC."
    )


class ToolList(BaseModel):
    """The organisation's registered tools."""

    model_config = ConfigDict(frozen=True)

    tools: tuple[Tool, ...] = Field(description="The tools, by name.")
    built_in: tuple[str, ...] = Field(description="Tools that need no registration.")


class Removed(BaseModel):
    """A registration that was ended."""

    model_config = ConfigDict(frozen=True)

    registration: str = Field(description="Its name.")
    removed: int = Field(description="How many tools it had.", ge=1)


@router.post(
    "/v1/tools",
    status_code=201,
    responses=answers(body=True),
    openapi_extra=request_body(ToolRegistration, _EXAMPLE),
    summary="Register tools",
)
async def register_tools(
    caller: Caller,
    parts: PartsOf,
    body: Annotated[ToolRegistration, Depends(json_body(ToolRegistration))],
    response: Response,
) -> ToolList:
    """Register the operations of an OpenAPI document or the tools of an MCP server.

    A worker reads the source, once. What it says now is what can be called, until it is registered
    again. All of it is registered, or nothing.
    """
    organisation = caller.organisation_id
    # A document may be larger than a history should hold.
    request = await blobs.put(
        parts.database,
        organisation,
        body.model_dump_json().encode(),
        "application/json",
        keep=timedelta(days=7),
    )
    tenant = Tenant(organisation_id=organisation, team_id=caller.team_id, key_id=caller.key_id)
    registered = await Orchestrator(parts.temporal, parts.settings).register_tools(
        RegisterInput(tenant=tenant, request=request)
    )
    response.headers["Location"] = "/v1/tools"
    found = await tool_registry.current(parts.database, organisation, registered.tools)
    return _list([found[name] for name in sorted(found)])


@router.get("/v1/tools", responses=answers(), summary="List tools")
async def list_tools(caller: Caller, parts: PartsOf) -> ToolList:
    """List the organisation's registered tools by name."""
    return _list(await tool_registry.list_tools(parts.database, caller.organisation_id))


@router.delete("/v1/tools/{registration}", responses=answers(404), summary="Remove tools")
async def remove_tools(caller: Caller, parts: PartsOf, registration: str) -> Removed:
    """End a registration. Tasks that run are refused its tools from now on."""
    removed = await tool_registry.remove(parts.database, caller.organisation_id, registration)
    if not removed:
        raise not_found("registration")
    await audit.append(
        parts.database,
        caller.organisation_id,
        actor=str(caller.key_id),
        action="tool.removed",
        subject=registration,
    )
    return Removed(registration=registration, removed=removed)


def _list(records: list[ToolRecord]) -> ToolList:
    return ToolList(
        tools=tuple(
            Tool(
                name=record.name,
                registration=record.source,
                kind=record.kind,
                description=record.description,
                input_schema=record.input_schema,
                definition=record.digest,
                approval=record.approval,
                timeout_seconds=record.timeout_seconds,
                max_attempts=record.max_attempts,
                created_at=record.created_at,
            )
            for record in records
        ),
        built_in=("calculator", "search"),
    )
