"""What an operator says about an upstream besides where it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["UpstreamOptions", "options_of"]


class UpstreamOptions(BaseModel):
    """Each has a default that suits most; unknown ones are refused where an operator writes them.

    Attributes:
        bytes_per_token: Fewest bytes of UTF-8 that a token is taken to have where a conversation is
            trimmed to the window. 1 is safe for whatever text; English has more than 4.
        message_tokens: Most tokens that the chat template puts around one message.
        prompt_tokens: Most tokens that it puts around all of them.
        max_tokens_parameter: By which name the longest answer is told.
        leave_out: Parameters that are never said, because the upstream refuses them.
        first_byte_s: Seconds until the answer begins; a long prompt is read without a sign of life.
        idle_s: Seconds without a byte after which the upstream counts as gone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes_per_token: float = Field(default=2.0, ge=1.0, le=8.0)
    message_tokens: int = Field(default=8, ge=0, le=10_000)
    prompt_tokens: int = Field(default=16, ge=0, le=100_000)
    max_tokens_parameter: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    leave_out: tuple[str, ...] = ()
    first_byte_s: float = Field(default=120.0, gt=0, le=3_600)
    idle_s: float = Field(default=60.0, gt=0, le=3_600)


def options_of(stored: Mapping[str, Any]) -> UpstreamOptions:
    """Return the options as the catalogue keeps them; what a newer version wrote is left out."""
    known = {name: stored[name] for name in UpstreamOptions.model_fields if name in stored}
    return UpstreamOptions.model_validate(known)
