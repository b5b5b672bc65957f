"""The rules of a route, as the catalogue keeps them.

Apart from who applies them: what starts a stack reads them too, and does no work of a worker's.
"""

from __future__ import annotations

from decimal import Decimal

from pydantic import BaseModel, ConfigDict

__all__ = ["Rule", "When"]


class When(BaseModel):
    """Conditions under which a rule applies; prompt lengths in tokens."""

    model_config = ConfigDict(extra="forbid")

    capabilities: tuple[str, ...] = ()
    max_prompt_tokens: int | None = None
    min_prompt_tokens: int | None = None


class Rule(BaseModel):
    """One candidate of a route, as the catalogue keeps it."""

    model_config = ConfigDict(extra="forbid")

    model: str
    when: When = When()
    max_usd_per_million_output: Decimal | None = None
