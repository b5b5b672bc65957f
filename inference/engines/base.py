"""What an engine is: something that continues token ids.

Everything that is the same for all engines (text, stop strings, limits, counting, errors on
the wire) is done once around them, in `inference.generation`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from inference.prompt import Prompt


class EngineRefusal(Exception):
    """The engine will not run this request; the same request would be refused again.

    Attributes:
        code: One of `inference.contract.REFUSALS`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Step:
    """Tokens that became ready together.

    Attributes:
        token_ids: New tokens; the end-of-text token is one of them when the model said it.
        prompt_tokens: Tokens the engine took in before the first new one (earlier attempts'
            tokens included).
        cached_tokens: How many of those it had already.
        queue_us: Microseconds the request waited inside the engine for its turn.
        ended: "stop" or "length" when the engine says that this was the last step.
    """

    token_ids: list[int]
    prompt_tokens: int
    cached_tokens: int = 0
    queue_us: int = 0
    ended: str | None = None


class Engine(Protocol):
    """One loaded model.

    Requests run side by side on one event loop; an engine batches them continuously by itself.
    """

    async def start(self) -> None:
        """Loads the model; returns when it can generate."""

    def generate(self, prompt: Prompt) -> AsyncGenerator[Step, None]:
        """Continues `prompt.input_ids + prompt.generated_ids`.

        Closing the generator stops the work and frees its slot. An engine may give more
        tokens than `sampling.max_tokens`; they are cut outside.

        Raises:
            EngineRefusal: The request is at fault.
            Exception: Anything else means that the engine broke.
        """

    async def close(self) -> None:
        """Frees the model."""
