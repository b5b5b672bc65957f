"""Waiting for what must be over before a workflow may go on or end, whatever arrives meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow

__all__ = ["wait_out"]


async def wait_out(running: workflow.ActivityHandle[Any]) -> asyncio.CancelledError | None:
    """Wait until an activity is done, also while the task is being cancelled.

    Its outcome, failures included, is on the handle.

    Returns:
        The wish to cancel that arrived meanwhile, if one did.
    """
    interrupted: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError as error:
            interrupted = error
        except Exception:
            break
    return interrupted
