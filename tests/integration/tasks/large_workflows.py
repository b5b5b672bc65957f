"""Workflows that pass on more than a history should hold."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow

__all__ = ["PassOn", "make", "measure"]


@activity.defn
async def make(size: int) -> str:
    """Give that many characters."""
    return "secret " * (size // 7)


@activity.defn
async def measure(text: str) -> int:
    """Count them."""
    return len(text)


@workflow.defn
class PassOn:
    """Has a text made and measured: once as a result, once as an input."""

    @workflow.run
    async def run(self, sizes: list[int]) -> list[int]:
        """Measure a text of each size; a negative one is made here and only measured there."""
        options = {"start_to_close_timeout": timedelta(seconds=60)}
        measured = []
        for size in sizes:
            text = (
                "x" * -size if size < 0 else await workflow.execute_activity(make, size, **options)  # type: ignore[arg-type]
            )
            measured.append(
                await workflow.execute_activity(measure, text, **options)  # type: ignore[arg-type]
            )
        return measured
