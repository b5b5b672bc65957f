"""The tool calls a step chose and what each was answered, whichever way its row has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["ChosenCall", "chosen_calls"]


@dataclass(frozen=True, slots=True)
class ChosenCall:
    """A tool call that a step's model chose.

    Attributes:
        place: which of the step's calls, from 1; None where a step has one at most.
        result: what the model was told; None: it was not made, or is not over.
        ok: whether it went well; None where the step's row does not say.
        call_id: id of the call; None where the step's row does not say.
    """

    name: str
    arguments: dict[str, Any]
    place: int | None = None
    result: str | None = None
    ok: bool | None = None
    call_id: str | None = None


def chosen_calls(
    tool_call: dict[str, Any] | list[dict[str, Any]] | None,
    tool_result: str | None,
    tool_results: dict[str, dict[str, Any]] | None,
) -> list[ChosenCall]:
    """Reads the columns of those names; of a step that may have several calls, in their order."""
    if tool_call is None:
        return []
    if isinstance(tool_call, dict):
        return [ChosenCall(tool_call["name"], tool_call["arguments"], result=tool_result)]
    found = []
    for place, call in enumerate(tool_call, start=1):
        told = (tool_results or {}).get(str(place), {})
        found.append(
            ChosenCall(
                call["name"],
                call["arguments"],
                place,
                result=told.get("text"),
                ok=told.get("ok"),
                call_id=told.get("call_id"),
            )
        )
    return found
