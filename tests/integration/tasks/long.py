"""Tasks of as many calls as wished, for an engine that plays them."""

from __future__ import annotations

from typing import Any

from tests.integration.tasks.caller import choose, say

__all__ = ["MODEL", "WINDOW_TOKENS", "counted", "counting"]

MODEL = "scripted"
# So much of what was computed is in each prompt; more of it would only be slower to read.
WINDOW_TOKENS = 1_200


def counting(steps: int, answer: str, *, pace_ms: float = 0) -> dict[str, Any]:
    """Return a request for a task of `steps` tool calls, no two alike, and an answer."""
    return {
        "input": choose({"tool": "calculator", "expression": "{next}+0"}, pace_ms=pace_ms)
        + say(answer, pace_ms=pace_ms),
        "model": MODEL,
        "tools": [{"name": "calculator", "max_calls": steps}],
        "limits": {"max_steps": steps + 1, "max_prompt_tokens": WINDOW_TOKENS},
        "sampling": {"max_tokens": 2_000},
        "cache": "off",
    }


def counted(step: int) -> str:
    """Return what the tool of a step, from 1, answers in such a task."""
    return f"{step - 1}+0 = {step - 1}"
