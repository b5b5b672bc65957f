"""Blocking work beside an event loop, in a thread that nobody waits for at exit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(act: Callable[[], T]) -> T:
    """Run blocking work in a daemon thread.

    Not `asyncio.to_thread`: its threads are waited for at exit, so a long installation would keep
    a stack that was told to stop.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[], None]) -> None:
        def once() -> None:
            if not outcome.done():
                set_it()

        with suppress(RuntimeError):
            loop.call_soon_threadsafe(once)

    def work() -> None:
        try:
            value = act()
        except BaseException as error:
            caught = error
            settle(lambda: outcome.set_exception(caught))
        else:
            settle(lambda: outcome.set_result(value))

    threading.Thread(target=work, daemon=True).start()
    return await outcome
