"""`make bench BENCH=durability`: what is lost, repeated or billed twice, and what grows.

On a stack of its own, with the scripted engine behind the real Triton. The default sizes take some
minutes; ARGS="--tasks 1000 --kill-seconds 3600 --steps 50,500,5000" is the full size.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from temporalio.client import Client

from inference.client import TritonClient
from tests.benchmarks.growth import growth, long_conversation
from tests.benchmarks.interruption import one_call_killed
from tests.benchmarks.progress import say
from tests.benchmarks.readers import cut_readers
from tests.benchmarks.storm import storm
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller
from tests.integration.tasks.long import MODEL
from workflows.client import connect_kwargs

WORKERS = 2
PARTS = ("storm", "call_killed", "readers", "growth", "conversation")


async def measure(stack: RunningStack, chosen: argparse.Namespace) -> dict[str, Any]:
    """Run every part, one after the other; the storm last, because it leaves parts restarting."""
    settings = stack.settings
    client = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
    base_url = stack.state().urls["api"]

    def caller(name: str) -> Caller:
        return Caller.made(stack.admin_url, base_url, name)

    async with TritonClient(settings.triton_urls[0]) as engine:
        books = Books(stack.admin_url, engine)
        steps = tuple(int(number) for number in chosen.steps.split(","))
        grown = await growth(client, caller("growth"), books, steps)
        conversation = await long_conversation(client, caller("conversation"))
        read = await cut_readers(caller("readers"), readers=chosen.readers, seed=chosen.seed)
        interrupted = await one_call_killed(stack, caller("interrupted"), books)
        stormed = await storm(
            stack,
            caller("storm"),
            books,
            tasks=chosen.tasks,
            seed=chosen.seed,
            kill_s=chosen.kill_seconds,
        )
    headline = (
        "tasks_lost",
        "calls_repeated",
        "calls_billed_twice",
        "ledger_minus_engine",
        "tokens_generated_twice",
        "recovery_s",
    )
    return {
        **{name: stormed[name] for name in headline},
        "stream_gaps": read["stream_gaps"],
        "stream_repeats": read["stream_repeats"],
        "per_call_growth": grown["per_call_at"],
        "fairness_delay_ratio": None,
        "fairness_reason": "not built: model calls share one queue, first come, first served",
        "history_bytes_max": conversation["history_bytes_max"],
        "engines": dict.fromkeys(PARTS, MODEL),
        "storm": stormed,
        "call_killed": interrupted,
        "readers": read,
        "growth_window_tokens": grown["window_tokens"],
        "conversation": conversation,
    }


def main() -> None:
    """Start the stack, measure, print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=40, help="tasks of ten calls under kills")
    parser.add_argument(
        "--kill-seconds", type=float, default=90, help="seconds in which parts are killed"
    )
    parser.add_argument("--readers", type=int, default=200, help="readers that are cut")
    parser.add_argument("--steps", default="50,300", help="lengths of tasks, by comma")
    parser.add_argument("--seed", type=int, default=4711, help="of kills and cuts")
    chosen = parser.parse_args()
    began, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="overline-bench-") as folder:
        stack = RunningStack(
            Path(folder) / "stack",
            {"OVERLINE_MODELS": MODEL, "OVERLINE_WORKERS": str(WORKERS)},
        )
        say("starting a stack")
        try:
            stack.up()
            measured = asyncio.run(measure(stack, chosen))
        finally:
            stack.overline("down")
    about = {
        "workers": WORKERS,
        "seed": chosen.seed,
        "cores": os.cpu_count(),
        "load_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps({**measured, "run": about}, indent=2))


if __name__ == "__main__":
    main()
