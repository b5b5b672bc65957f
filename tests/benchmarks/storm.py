"""Many tasks while parts are killed: what is lost, done twice, billed twice, and for how long."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.audit import calls, ledger_minus_engine, quantiles, recoveries
from tests.benchmarks.limits import Cut, Limit
from tests.benchmarks.progress import say
from tests.chaos.victims import kill, model_processes
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller
from tests.integration.tasks.long import MODEL, counting

__all__ = ["CALLS", "storm"]

CALLS = 10
ANSWER = "Every number was counted, and none of them twice."
TARGETS = ("worker-1", "worker-2", "postgres", "temporal", "model", "triton", "api")
EVERY_S = (4.0, 6.0)
AT_ONCE = 16
PACE_MS = 2.0
# An outage that a caller waits out: of everything at once, on a machine under load.
PATIENCE_S = 300.0

Kills = list[tuple[float, str]]


async def storm(
    stack: RunningStack,
    caller: Caller,
    books: Books,
    *,
    tasks: int,
    seed: int,
    kill_s: float,
    limit: Limit,
    found: dict[str, Any],
) -> None:
    """Run tasks of ten calls each, killing a part about every five seconds.

    A kill waits while more than one part is still starting, and the last one comes `kill_s` seconds
    after the first task; what is not done by then, is done in peace.

    Raises:
        Cut: The time was up; all that ended by then is audited and noted.
    """
    caller.patience_s = PATIENCE_S
    chance = random.Random(seed)
    kills: Kills = []
    killing = asyncio.create_task(_kill(stack, chance, kills, time.monotonic() + kill_s))
    began = time.monotonic()
    ended: list[dict[str, Any]] = []
    submitted: list[str] = []
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with gate:
            stands = f"{len(ended)} of {tasks} tasks, {len(kills)} kills"
            limit.check(stands)
            request = counting(CALLS - 1, ANSWER, pace_ms=PACE_MS)
            task_id = await caller.submit(**request)
            submitted.append(task_id)
            while (task := await caller.task(task_id))["finished_at"] is None:
                limit.check(stands)
                await asyncio.sleep(0.1)
            ended.append(task)
            say(f"storm: {len(ended)} of {tasks} tasks, {len(kills)} kills")

    try:
        failed = await asyncio.gather(*(one() for _ in range(tasks)), return_exceptions=True)
    finally:
        killing.cancel()
        stopped = await asyncio.gather(killing, return_exceptions=True)
    took = time.monotonic() - began
    cut = [each for each in failed if isinstance(each, Cut)]
    odd = [each for each in (*failed, *stopped) if isinstance(each, Exception) and each not in cut]
    await asyncio.to_thread(stack.wait_for, lambda state: state.all_ready, limit_s=300)
    found |= {
        "tasks": tasks,
        "tasks_submitted": len(submitted),
        "tasks_ended": len(ended),
        "calls_per_task": CALLS,
        "at_once": AT_ONCE,
        "seconds": round(took, 1),
        "kills": len(kills),
        "seconds_of_kills": round(min(took, kill_s), 1),
        "seconds_between_kills": round(min(took, kill_s) / len(kills), 1) if kills else None,
        "killed": dict(sorted(Counter(what for _, what in kills).items())),
        # A caller that was refused or gave up is a task lost, too.
        "tasks_lost": len(ended) - _right(ended) + len(odd),
    }
    await _audit(books, [str(task["id"]) for task in ended], kills, found)
    # What was cut is ended here, so that nothing is held and nothing runs when books are compared.
    for task_id in set(submitted) - {task["id"] for task in ended}:
        await caller.cancel(task_id)
        await caller.ended(task_id, limit_s=PATIENCE_S)
    found["ledger_minus_engine"] = await ledger_minus_engine(books, MODEL)
    books.assert_nothing_held(caller.organisation_id)
    if odd:
        raise odd[0]
    if cut:
        raise cut[-1]


def _right(ended: Sequence[dict[str, Any]]) -> int:
    return sum(task["status"] == "succeeded" and task["answer"] == ANSWER for task in ended)


async def _audit(books: Books, ended: Sequence[str], kills: Kills, found: dict[str, Any]) -> None:
    """Note what the ledger says of the calls of tasks that ended, and what the kills cost."""
    rows = calls(books, ended)
    seconds = recoveries(books, ended, kills)
    of_part = defaultdict(list)
    for part, took in seconds:
        of_part[part].append(took)
    found |= {
        "calls_missing": len(ended) * CALLS - len(rows),
        "calls_repeated": sum(row["succeeded"] > 1 for row in rows),
        "calls_interrupted": sum(row["attempts"] > 1 for row in rows),
        "calls_billed_twice": sum(
            row["prompts_billed"] > 1 or row["output_billed"] > row["output_said"] for row in rows
        ),
        "tokens_generated": int(sum(row["output_billed"] + row["output_wasted"] for row in rows)),
        "tokens_generated_twice": int(sum(row["output_wasted"] for row in rows)),
        "recovery_s": quantiles([took for _, took in seconds]),
        "recovery_s_by_part": {part: quantiles(took) for part, took in sorted(of_part.items())},
        "recoveries": len(seconds),
    }


async def _kill(stack: RunningStack, chance: random.Random, kills: Kills, until: float) -> None:
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
