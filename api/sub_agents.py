"""Agents that are tools of tasks and of other agents: who asks whom, and never in a circle.

What a sub-agent is asked with is pinned when the task is submitted, as a registered tool's
definition is: its version, its collections, and its own tools and sub-agents, all the way down.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import rfc8785

from api.collection_names import with_collection_ids
from api.parts import Parts
from api.problems import ProblemError, invalid
from store import agents, tool_registry
from store.identity import Principal
from store.tool_registry import ToolRecord
from workflows import errors
from workflows.agents import AgentSpec, resolve, split_reference
from workflows.child_contracts import MAX_NESTING, SUB_AGENT, is_sub_agent
from workflows.contracts import TaskRequest, ToolUse

__all__ = ["SubAgentPins", "require_no_cycle"]

_DESCRIPTION_CHARS = 400
_INPUT_SCHEMA = {
    "type": "object",
    # Fits the tokens that a choice may have; a grammar would allow 300 characters by itself.
    "properties": {"input": {"type": "string", "minLength": 1, "maxLength": 600}},
    "required": ["input"],
}
#: Below the task itself, which may stand below a map.
_MOST_BELOW = MAX_NESTING - 1
#: What a child takes from its parent, or is asked each time.
_NOT_PINNED = {"input", "messages", "webhook", "user", "tags"}

Pin = Callable[[TaskRequest], Awaitable[TaskRequest]]


def _sub_agents(tools: Sequence[ToolUse]) -> list[tuple[int, ToolUse]]:
    return [(number, tool) for number, tool in enumerate(tools) if is_sub_agent(tool.name)]


async def _named(parts: Parts, caller: Principal, tool: ToolUse, pointer: str) -> agents.Agent:
    name, version = split_reference(tool.name.removeprefix(f"{SUB_AGENT}."))
    found = await agents.get_agent(parts.database, caller.organisation_id, name, version)
    if found is None or found.archived_at is not None:
        raise invalid(
            pointer, "not_allowed", f"There is no agent {name!r} in use; GET /v1/agents lists them."
        )
    return found


def _step(path: tuple[str, ...], label: str, pointer: str) -> tuple[str, ...]:
    """Go on to an agent.

    Raises:
        ProblemError: It stands above itself, or too much does (422).
    """
    if label in path:
        circle = " → ".join((*path[path.index(label) :], label))
        raise invalid(pointer, "cycle", f"These agents would ask each other for ever: {circle}.")
    if len(path) > _MOST_BELOW:
        line = " → ".join((*path, label))
        raise invalid(pointer, "too_deep", f"Agents ask agents {_MOST_BELOW} deep at most: {line}.")
    return (*path, label)


async def require_no_cycle(
    parts: Parts, caller: Principal, name: str, tools: Sequence[ToolUse]
) -> None:
    """Look at all that an agent would ask if it had these tools.

    Raises:
        ProblemError: One is not there, or it would stand below itself (422).
    """
    seen: set[str] = set()

    async def walk(below: Sequence[ToolUse], path: tuple[str, ...], pointer: str | None) -> None:
        for number, tool in _sub_agents(below):
            where = pointer or f"/tools/{number}/name"
            if tool.name == f"{SUB_AGENT}.{name}":
                # Its version to come, which nobody could have named by number.
                _step(path, path[0], where)
            found = await _named(parts, caller, tool, where)
            label = f"{found.name}@{found.version}"
            further = _step(path, label, where)
            if label not in seen:
                await walk(AgentSpec.model_validate(found.spec).tools, further, where)
                seen.add(label)

    await walk(tools, (name,), None)


@dataclass
class SubAgentPins:
    """Pins the sub-agents of one request.

    Args:
        pin_tools: Pins the registered tools of a request.
    """

    parts: Parts
    caller: Principal
    pin_tools: Pin
    # What an agent is asked with, and how many agents stand in line from it on.
    _known: dict[str, tuple[dict[str, Any], int]] = field(default_factory=dict)

    async def pin(self, request: TaskRequest) -> TaskRequest:
        """Return the request with a definition of every sub-agent among its tools.

        Raises:
            ProblemError: One is not there, stands below itself, or has what is not there.
        """
        path = (request.agent,) if request.agent else ("the task",)
        tools, _ = await self._pinned(request.tools, path, None)
        return request.model_copy(update={"tools": tools})

    async def _pinned(
        self, tools: Sequence[ToolUse], path: tuple[str, ...], pointer: str | None
    ) -> tuple[tuple[ToolUse, ...], int]:
        pinned, depth = list(tools), 0
        for number, tool in _sub_agents(tools):
            where = pointer or f"/tools/{number}/name"
            if tool.definition is not None:
                await self._require(tool, where)
                continue
            found = await _named(self.parts, self.caller, tool, where)
            template, below = await self._template(found, path, where)
            digest = await self._keep(tool.name, found, template)
            pinned[number] = tool.model_copy(update={"definition": digest})
            depth = max(depth, below)
        return tuple(pinned), depth

    async def _template(
        self, agent: agents.Agent, path: tuple[str, ...], pointer: str
    ) -> tuple[dict[str, Any], int]:
        label = f"{agent.name}@{agent.version}"
        further = _step(path, label, pointer)
        if label not in self._known:
            spec = AgentSpec.model_validate(agent.spec)
            asked = TaskRequest.model_validate({"input": "?", "agent": label})
            request = resolve(asked, spec, name=agent.name, version=agent.version)
            request = await with_collection_ids(self.parts, self.caller, request)
            request = await self.pin_tools(request)
            tools, below = await self._pinned(request.tools, further, pointer)
            request = request.model_copy(update={"tools": tools})
            self._known[label] = request.model_dump(mode="json", exclude=_NOT_PINNED), below + 1
        template, below = self._known[label]
        if len(path) + below - 1 > _MOST_BELOW:
            raise invalid(pointer, "too_deep", f"Agents ask agents {_MOST_BELOW} deep at most.")
        return template, below

    async def _keep(self, tool: str, agent: agents.Agent, template: dict[str, Any]) -> str:
        about = AgentSpec.model_validate(agent.spec).description or "asks it"
        description = " ".join(f"agent {agent.name}: {about}".split())[:_DESCRIPTION_CHARS]
        target = {"agent": f"{agent.name}@{agent.version}", "request": template}
        said: dict[str, Any] = {
            "name": tool,
            "description": description,
            "input_schema": _INPUT_SCHEMA,
            "target": target,
        }
        digest = hashlib.sha256(rfc8785.dumps(said)).hexdigest()
        await tool_registry.pin(
            self.parts.database,
            self.caller.organisation_id,
            ToolRecord(
                name=tool,
                digest=digest,
                source=SUB_AGENT,
                kind="agent",
                description=description,
                input_schema=_INPUT_SCHEMA,
                target=target,
                approval="never",
                timeout_seconds=1,
                max_attempts=1,
            ),
        )
        return digest

    async def _require(self, tool: ToolUse, pointer: str) -> None:
        """A definition that was pinned before, such as by the task this one is forked from."""
        found = await tool_registry.definition(
            self.parts.database, self.caller.organisation_id, tool.name, tool.definition or ""
        )
        if found is None:
            raise ProblemError(
                errors.Conflict, f"Agent {tool.name} was never pinned with this definition."
            )
