"""What every contract is made of: frozen models, and the names they share."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, ConfigDict, PlainSerializer, StringConstraints

__all__ = ["AgentName", "Asked", "Name", "Sha256", "ToolName", "Usd", "Wire"]

# A built-in tool, `registration.tool`, `agent.name` or `agent.name@version`.
ToolName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
        r"(\.[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}(@[1-9][0-9]{0,8})?)?$"
    ),
]


Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


# `str` would write nothing as 0E-9, which no program but Python's takes for a number in a text.
Usd = Annotated[Decimal, PlainSerializer(lambda value: f"{value:f}", str, when_used="json")]


Name = Annotated[str, StringConstraints(min_length=1, max_length=128)]


AgentName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@[1-9][0-9]{0,8})?$")
]


class Wire(BaseModel):
    """Base of everything that crosses the border: frozen.

    A field this version does not know is left out, because during a rollout a newer process may
    have sent it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")


class Asked(Wire):
    """Base of what a caller writes: there, a field nobody knows is a mistake to be told of."""

    model_config = ConfigDict(frozen=True, extra="forbid")
