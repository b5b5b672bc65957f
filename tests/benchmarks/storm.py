"""Many tasks while parts are killed: what is lost, done twice, billed twice, and for how long."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any

from tests.benchmarks.audit import calls, ledger_minus_engine, quantiles, recoveries
from tests.benchmarks.progress import say
from tests.chaos.victims import kill, model_processes
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused
from tests.integration.tasks.long import MODEL, counting

__all__ = ["storm"]

CALLS = 10
ANSWER = "Every number was counted, and none of them twice."
TARGETS = ("worker-1", "worker-2", "postgres", "temporal", "model", "triton", "api")
EVERY_S = (4.0, 6.0)
AT_ONCE = 16
PACE_MS = 2.0
TASK_LIMIT_S = 600.0


async def storm(
    stack: RunningStack, caller: Caller, books: Books, *, tasks: int, seed: int, kill_s: float
) -> dict[str, Any]:
    """Run tasks of ten calls each, killing a part about every five seconds.

    A kill waits while more than one part is still starting, and the last one comes `kill_s` seconds
    after the first task; what is not done by then, is done in peace.
    """
    chance = random.Random(seed)
    kills: list[tuple[float, str]] = []
    killing = asyncio.create_task(_kill(stack, chance, kills, time.monotonic() + kill_s))
    began = time.monotonic()
    ended: list[dict[str, Any]] = []
    submitted: list[str] = []
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with gate:
            task_id = await caller.submit(**counting(CALLS - 1, ANSWER, pace_ms=PACE_MS))
            submitted.append(task_id)
            ended.append(await caller.ended(task_id, limit_s=TASK_LIMIT_S))
            say(f"storm: {len(ended)} of {tasks} tasks, {len(kills)} kills")

    try:
        failed = await asyncio.gather(*(one() for _ in range(tasks)), return_exceptions=True)
    finally:
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
    took = time.monotonic() - began
    for error in failed:
        if isinstance(error, BaseException) and not isinstance(error, AssertionError | Refused):
            raise error
    await asyncio.to_thread(stack.wait_for, lambda state: state.all_ready, limit_s=120)
    rows = calls(books, submitted)
    right = [task for task in ended if task["status"] == "succeeded" and task["answer"] == ANSWER]
    books.assert_nothing_held(caller.organisation_id)
    return {
        "tasks": tasks,
        "calls_per_task": CALLS,
        "seconds": round(took, 1),
        "kills": len(kills),
        "seconds_of_kills": round(min(took, kill_s), 1),
        "seconds_between_kills": round(min(took, kill_s) / len(kills), 1) if kills else None,
        "killed": dict(sorted(Counter(what for _, what in kills).items())),
        "tasks_lost": tasks - len(right),
        "calls_missing": tasks * CALLS - len(rows),
        "calls_repeated": sum(row["succeeded"] > 1 for row in rows),
        "calls_interrupted": sum(row["attempts"] > 1 for row in rows),
        "calls_billed_twice": sum(
            row["prompts_billed"] > 1 or row["output_billed"] > row["output_said"] for row in rows
        ),
        "ledger_minus_engine": await ledger_minus_engine(books, MODEL),
        "tokens_generated": int(sum(row["output_billed"] + row["output_wasted"] for row in rows)),
        "tokens_generated_twice": int(sum(row["output_wasted"] for row in rows)),
        "recovery_s": quantiles(recoveries(books, submitted, [at for at, _ in kills])),
    }


async def _kill(
    stack: RunningStack, chance: random.Random, kills: list[tuple[float, str]], until: float
) -> None:
    """Kill one part after the other, every kind as often, until a moment or until cancelled."""
    deck: list[str] = []
    while time.monotonic() < until:
        await asyncio.sleep(chance.uniform(*EVERY_S))
        # On a slow machine a part takes longer to start than the next kill takes to come, and soon
        # nothing would be up: then there is nothing to kill either.
        while len(down := _down(stack)) > 1:
            say(f"storm: waiting for {', '.join(down)} to start")
            await asyncio.sleep(0.2)
        if not deck:
            deck = list(TARGETS)
            chance.shuffle(deck)
        target = deck.pop()
        pid = stack.state().parts["triton" if target == "model" else target]["pid"]
        pids = [] if pid is None else model_processes(pid) if target == "model" else [pid]
        if pids:  # else it is starting again
            kill(pids)
            kills.append((time.time(), target))
            say(f"storm: kill {len(kills)}: {target}")


def _down(stack: RunningStack) -> list[str]:
    return [name for name, part in stack.state().parts.items() if part["state"] != "ready"]
