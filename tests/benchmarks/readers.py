"""Many readers of one task whose sockets are cut at random, against one that is left alone."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import httpx2

from tests.benchmarks.audit import quantiles
from tests.benchmarks.limits import Cut, Limit
from tests.benchmarks.progress import say as show
from tests.integration.tasks.caller import PAUSE_S, Caller, Unavailable, say, words
from tests.integration.tasks.long import MODEL

__all__ = ["cut_readers"]

WORDS = 200
PACE_MS = 15.0
EVENTS_PER_CONNECTION = (5, 60)


async def cut_readers(
    caller: Caller, *, readers: int, seed: int, limit: Limit, found: dict[str, Any]
) -> None:
    """Read one answer with many readers; notes gaps, repeats and added milliseconds.

    Raises:
        Cut: The time was up; the readers that had come to the end by then are noted.
    """
    task_id = await caller.submit(
        f"{seed} " + say(words(WORDS), pace_ms=PACE_MS, first_ms=4_000),
        model=MODEL,
        sampling={"max_tokens": 4_000},
        cache="off",
    )
    # A client of its own for each, as readers are apart; the default would limit connections.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    caller.http = httpx2.AsyncClient(
        base_url=caller.base_url,
        headers={"Authorization": f"Bearer {caller.token}"},
        timeout=httpx2.Timeout(60),
        limits=limits,
    )
    connections = broken = 0

    async def read(chance: random.Random | None) -> dict[int, float]:
        nonlocal connections, broken
        seen: dict[int, float] = {}
        order: list[int] = []
        last: str | None = None
        while True:
            limit.check(f"{len(orders)} of {readers + 1} readers at the end")
            left = chance.randint(*EVENTS_PER_CONNECTION) if chance else -1
            connections += 1
            stream = caller.stream(task_id, last)
            try:
                async for event in stream:
                    order.append(event.seq)
                    seen[event.seq] = time.monotonic()
                    last = event.id
                    left -= 1
                    if event.type.startswith("task.") and event.type != "task.accepted":
                        orders.append(order)
                        show(f"readers: {len(orders)} of {readers + 1} at the end")
                        return seen
                    if left == 0:
                        break
            except (httpx2.HTTPError, OSError, Unavailable):
                # A machine under load drops one; its reader comes back as after a cut of ours.
                broken += 1
                await asyncio.sleep(PAUSE_S)
            await stream.aclose()  # type: ignore[attr-defined]

    orders: list[list[int]] = []
    reading = [asyncio.create_task(read(None))] + [
        asyncio.create_task(read(random.Random(seed + number))) for number in range(readers)
    ]
    _, waiting = await asyncio.wait(reading, timeout=limit.seconds)
    for task in waiting:
        task.cancel()
    ended = await asyncio.gather(*reading, return_exceptions=True)
    await caller.http.aclose()
    failed = [each for each in ended if isinstance(each, BaseException)]
    alone, cut = ended[0], [each for each in ended[1:] if isinstance(each, dict)]
    if not isinstance(alone, dict):
        raise Cut(f"the reader that is left alone did not come to the end: {alone!r}")
    whole = set(alone)
    found |= {
        "readers": readers,
        "readers_at_the_end": len(cut),
        "events": len(alone),
        "connections": connections,
        "connections_broken": broken,
        "stream_gaps": sum(len(whole - set(order)) for order in orders),
        "stream_repeats": sum(len(order) - len(set(order)) for order in orders),
        "out_of_order": sum(order != sorted(order) for order in orders),
        "added_ms": quantiles(
            [
                (at - alone[seq]) * 1000
                for seen in cut
                for seq, at in seen.items()
                # What had been there before a reader came is no delay of its stream.
                if seq > 2
            ],
            1,
        ),
    }
    if failed:
        raise Cut(f"{len(failed)} of {readers} readers did not come to the end: {failed[0]!r}")
