"""A task's tools as they are at the moment it is submitted: registered ones by their digest.

What is registered later is no tool of a task that runs, and no other definition takes the place of
the one it was told of.
"""

from __future__ import annotations

from collections.abc import Sequence

from api.parts import Parts
from api.problems import ProblemError, invalid
from api.sub_agents import SubAgentPins
from store import tool_registry
from store.identity import Principal
from store.tool_registry import ToolRecord
from workflows import errors
from workflows.child_contracts import is_sub_agent
from workflows.contracts import (
    BUILT_IN_TOOLS,
    Approval,
    ApprovalWhen,
    TaskRequest,
    ToolUse,
    choice_tokens,
)

__all__ = ["max_choice_tokens", "stricter", "with_definitions"]


def max_choice_tokens(tools: Sequence[ToolUse], parallel: int = 1) -> int:
    """Return how long the first choice among tools may get, in tokens."""
    registered = any(tool.name not in BUILT_IN_TOOLS for tool in tools)
    return choice_tokens(registered=registered, parallel=parallel)


async def with_definitions(parts: Parts, caller: Principal, request: TaskRequest) -> TaskRequest:
    """Return the request with the digest and the policies of every registered tool it names.

    Sub-agents are pinned, too, with all they are asked with.

    Raises:
        ProblemError: There is no such tool (422), or not as the caller means it (409).
    """
    for number, tool in enumerate(request.tools):
        if tool.definition is not None and tool.name in BUILT_IN_TOOLS:
            raise invalid(f"/tools/{number}/definition", "not_allowed", "A built-in tool has none.")
    pinned = await _with_registered(parts, caller, request)
    pins = SubAgentPins(parts, caller, lambda theirs: _with_registered(parts, caller, theirs))
    return await pins.pin(pinned)


async def _with_registered(parts: Parts, caller: Principal, request: TaskRequest) -> TaskRequest:
    names = [tool.name for tool in request.tools if _is_registered(tool)]
    if not names:
        return request
    found = await tool_registry.current(parts.database, caller.organisation_id, names)
    return request.model_copy(
        update={
            "tools": tuple(
                _pinned(number, tool, found.get(tool.name)) if _is_registered(tool) else tool
                for number, tool in enumerate(request.tools)
            )
        }
    )


def _is_registered(tool: ToolUse) -> bool:
    return tool.name not in BUILT_IN_TOOLS and not is_sub_agent(tool.name)


def _pinned(number: int, tool: ToolUse, record: ToolRecord | None) -> ToolUse:
    if record is None:
        raise invalid(
            f"/tools/{number}/name",
            "not_allowed",
            "There is no such tool; GET /v1/tools lists those there are.",
        )
    if tool.definition not in (None, record.digest):
        raise ProblemError(
            errors.Conflict,
            f"Tool {record.name} is registered with another definition, {record.digest}.",
        )
    own = ToolUse.model_validate({"name": tool.name, "approval": record.approval}).approval
    return tool.model_copy(
        update={
            "definition": record.digest,
            "approval": stricter(own, tool.approval),
            "timeout_seconds": tool.timeout_seconds or record.timeout_seconds,
            "max_attempts": tool.max_attempts or record.max_attempts,
        }
    )


def stricter(one: Approval, other: Approval) -> Approval:
    """Return a policy under which every call waits that waits under either."""
    if one == "never" or one == other:
        return other
    if other == "never":
        return one
    if not isinstance(one, ApprovalWhen) or not isinstance(other, ApprovalWhen):
        return "always"
    if one.when.keys() & other.when.keys() or len(one.when) + len(other.when) > 16:
        # One pattern an argument is all a policy can say: rather too often than too seldom.
        return "always"
    return ApprovalWhen(when={**one.when, **other.when})
