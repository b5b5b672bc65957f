"""A task that names an agent: what the agent says, joined with what the request says."""

from __future__ import annotations

from pydantic import ValidationError

from api.parts import Parts
from api.problems import ProblemError, invalid, not_found
from inference.json_grammar import SchemaError
from inference.json_schema import require_valid
from store import agents
from store.identity import Principal
from workflows.agents import AgentSpec, resolve, split_reference
from workflows.contracts import TaskRequest
from workflows.output import schema_text

__all__ = ["find_agent", "require_schema", "with_agent"]


async def with_agent(parts: Parts, caller: Principal, request: TaskRequest) -> TaskRequest:
    """Return the request with what it leaves open taken from the agent it names, if it names one.

    Raises:
        ProblemError: There is no such agent in use (404), or request and agent contradict each
            other (422).
    """
    if request.agent is None:
        return request
    name, version = split_reference(request.agent)
    agent = await find_agent(parts, caller, name, version)
    if agent.archived_at is not None:
        raise await _unknown(parts, caller)
    try:
        spec = AgentSpec.model_validate(agent.spec)
        return resolve(request, spec, name=agent.name, version=agent.version)
    except ValidationError as error:
        pointer = "".join(f"/{part}" for part in error.errors()[0]["loc"])
        raise invalid(
            pointer, "contradiction", f"This contradicts agent {agent.name}@{agent.version}."
        ) from None


async def find_agent(
    parts: Parts, caller: Principal, name: str, version: int | None = None
) -> agents.Agent:
    """Return a version of an agent, by default the newest; archived ones too.

    Raises:
        ProblemError: There is none (404); names those in use.
    """
    agent = await agents.get_agent(parts.database, caller.organisation_id, name, version)
    if agent is None:
        raise await _unknown(parts, caller)
    return agent


async def _unknown(parts: Parts, caller: Principal) -> ProblemError:
    known = await agents.list_agents(parts.database, caller.organisation_id)
    return not_found("agent", known=[f"{agent.name}@{agent.version}" for agent in known])


def require_schema(request: TaskRequest | AgentSpec) -> None:
    """Refuse an `output_schema` that is no JSON Schema by itself.

    Raises:
        ProblemError: Says what is wrong with it (422).
    """
    if request.output_schema is None:
        return
    try:
        require_valid(schema_text(request.output_schema))
    except SchemaError as error:
        raise invalid("/output_schema", "invalid_schema", f"{error}.") from None
