"""`make bench BENCH=durability`: what is lost, repeated or billed twice, and what grows.

On a stack of its own, with the scripted engine behind the real Triton. The default sizes take some
minutes; ARGS="--tasks 1000 --kill-seconds 3600 --steps 50,500,5000" is the full size. A part that
does not come to its end in its time says so in `reason`, with what it had found by then, and the
next one runs; with --out, all that is known is in a file after each part.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import Client

from inference.client import TritonClient
from tests.benchmarks.fairness import fairness
from tests.benchmarks.growth import growth, long_conversation
from tests.benchmarks.interruption import one_call_killed
from tests.benchmarks.limits import Cut, Limit
from tests.benchmarks.progress import say
from tests.benchmarks.readers import cut_readers
from tests.benchmarks.storm import CALLS, storm
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller
from tests.integration.tasks.long import MODEL
from workflows.client import connect_kwargs

WORKERS = 2
# What a part may take beyond its own limit, to tell what it has found.
GRACE_S = 300.0
# The keys people compare, and the part and key of that part they come from.
HEADLINE = {
    "tasks_lost": ("storm", "tasks_lost"),
    "calls_repeated": ("storm", "calls_repeated"),
    "calls_billed_twice": ("storm", "calls_billed_twice"),
    "ledger_minus_engine": ("storm", "ledger_minus_engine"),
    "tokens_generated_twice": ("storm", "tokens_generated_twice"),
    "recovery_s": ("storm", "recovery_s"),
    "stream_gaps": ("readers", "stream_gaps"),
    "stream_repeats": ("readers", "stream_repeats"),
    "stream_added_ms": ("readers", "added_ms"),
    "history_bytes_max": ("conversation", "history_bytes_max"),
    "fairness_delay_ratio": ("fairness", "delay_ratio"),
}

Found = dict[str, Any]
Part = Callable[[Caller, Limit, Found], Awaitable[None]]


@dataclass(frozen=True)
class Parts:
    """The parts, on a stack that runs.

    Attributes:
        stack: Where all of them run, one after the other.
        client: Its Temporal.
        books: Its ledger and its engine's meter.
        chosen: Sizes.
    """

    stack: RunningStack
    client: Client
    books: Books
    chosen: argparse.Namespace

    async def growth(self, caller: Caller, limit: Limit, found: Found) -> None:
        """What a call costs at the end of tasks of some lengths."""
        await growth(
            self.client,
            caller,
            self.books,
            sizes=_sizes(self.chosen),
            limit=limit,
            found=found,
        )

    async def conversation(self, caller: Caller, limit: Limit, found: Found) -> None:
        """The history of 100 calls over 200,000 tokens."""
        await long_conversation(self.client, caller, limit=limit, found=found)

    async def readers(self, caller: Caller, limit: Limit, found: Found) -> None:
        """Readers whose sockets are cut."""
        await cut_readers(
            caller,
            readers=self.chosen.readers,
            seed=self.chosen.seed,
            limit=limit,
            found=found,
        )

    async def call_killed(self, caller: Caller, limit: Limit, found: Found) -> None:
        """A worker that dies in call 37 of 50."""
        await one_call_killed(self.stack, caller, self.books, limit=limit, found=found)

    async def fairness(self, caller: Caller, limit: Limit, found: Found) -> None:
        """One call behind another team's many."""
        await fairness(self.stack, self.books, limit=limit, found=found)

    async def storm(self, caller: Caller, limit: Limit, found: Found) -> None:
        """Tasks under kills of everything."""
        await storm(
            self.stack,
            caller,
            self.books,
            tasks=self.chosen.tasks,
            seed=self.chosen.seed,
            kill_s=self.chosen.kill_seconds,
            limit=limit,
            found=found,
        )


def _sizes(chosen: argparse.Namespace) -> tuple[int, ...]:
    return tuple(int(number) for number in chosen.steps.split(","))


def limits(chosen: argparse.Namespace) -> dict[str, float]:
    """Seconds each part may take, in the order they run: a few times what a quiet machine needs.

    The storm is last, because it leaves parts restarting.
    """
    found = {
        "growth": 60 + sum(_sizes(chosen)) * 0.5,
        "conversation": 300.0,
        "readers": 120 + chosen.readers * 0.5,
        "call_killed": 180.0,
        "fairness": 240.0,
        "storm": chosen.kill_seconds + 120 + chosen.tasks * CALLS * 0.4,
    }
    wished = dict(each.split("=") for each in chosen.limit)
    if unknown := set(wished) - set(found):
        raise SystemExit(f"no such part: {', '.join(sorted(unknown))}")
    return found | {name: float(seconds) for name, seconds in wished.items()}


async def run_part(part: Part, caller: Caller, stack: RunningStack, seconds: float) -> Found:
    """Run one part; whatever happens in it, what it found comes back, with the reason."""
    found: Found = {}
    began = time.monotonic()
    try:
        await asyncio.to_thread(stack.wait_for, lambda state: state.all_ready, limit_s=GRACE_S)
        async with asyncio.timeout(seconds + GRACE_S):
            await part(caller, Limit(seconds), found)
    except Cut as cut:
        found["reason"] = str(cut)
    except TimeoutError:
        found["reason"] = f"hung: not at its end {GRACE_S:.0f} s after its limit of {seconds:.0f} s"
    except Exception as error:
        found["reason"] = f"failed: {type(error).__name__}: {str(error)[:500]}"
    if "reason" in found:
        # What it left running would be a load on the next part.
        with contextlib.suppress(Exception):
            await _end_all(caller)
    await caller.http.aclose()
    return found | {"part_seconds": round(time.monotonic() - began, 1), "engine": MODEL}


async def _end_all(caller: Caller) -> None:
    for status in ("running", "accepted"):
        listed = await caller.request("GET", f"/v1/tasks?status={status}&limit=100")
        for task in listed.json()["tasks"]:
            await caller.cancel(task["id"])


def summary(parts: dict[str, Found], about: Found) -> Found:
    """Return the one JSON object: what people compare first, then all of every part."""
    found: Found = {name: parts.get(part, {}).get(key) for name, (part, key) in HEADLINE.items()}
    found["per_call_growth"] = {
        size: cost for size, cost in parts.get("growth", {}).items() if size.isdigit()
    }
    reasons = {name: part["reason"] for name, part in parts.items() if "reason" in part}
    return {**found, "reasons": reasons, "parts": parts, "run": about}


async def measure(stack: RunningStack, chosen: argparse.Namespace, about: Found) -> Found:
    """Run the chosen parts, one after the other, and note each at once."""
    settings = stack.settings
    client = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
    base_url = stack.state().urls["api"]
    done: dict[str, Found] = {}
    began = time.monotonic()
    async with TritonClient(settings.triton_urls[0]) as engine:
        parts = Parts(stack, client, Books(stack.admin_url, engine), chosen)
        for name, seconds in limits(chosen).items():
            if name not in chosen.parts.split(","):
                continue
            say(f"{name}: at most {seconds:.0f} s")
            caller = Caller.made(stack.admin_url, base_url, name)
            part: Part = getattr(parts, name)
            done[name] = await run_part(part, caller, stack, seconds)
            about |= {
                "seconds": round(time.monotonic() - began),
                "load_after": round(os.getloadavg()[0], 1),
            }
            if chosen.out is not None:
                chosen.out.write_text(json.dumps(summary(done, about), indent=2) + "\n")
    return summary(done, about)


def arguments() -> argparse.ArgumentParser:
    """Return what can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100, help="tasks of ten calls under kills")
    parser.add_argument(
        "--kill-seconds", type=float, default=150, help="seconds in which parts are killed"
    )
    parser.add_argument("--readers", type=int, default=200, help="readers that are cut")
    parser.add_argument("--steps", default="50,500", help="lengths of tasks, by comma")
    parser.add_argument("--seed", type=int, default=4711, help="of kills and cuts")
    parser.add_argument(
        "--parts",
        default="growth,conversation,readers,call_killed,fairness,storm",
        help="what to measure, by comma",
    )
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="PART=SECONDS",
        help="another limit of a part; repeatable",
    )
    parser.add_argument("--out", type=Path, help="file for the result, rewritten after each part")
    return parser


def main() -> None:
    """Start the stack, measure, print one JSON object; status 1 if a part has a reason."""
    chosen = arguments().parse_args()
    if unknown := set(chosen.parts.split(",")) - set(limits(chosen)):
        raise SystemExit(f"no such part: {', '.join(sorted(unknown))}")
    about: Found = {
        "workers": WORKERS,
        "seed": chosen.seed,
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1),
    }
    with tempfile.TemporaryDirectory(prefix="overline-bench-") as folder:
        stack = RunningStack(
            Path(folder) / "stack",
            {"OVERLINE_MODELS": MODEL, "OVERLINE_WORKERS": str(WORKERS)},
        )
        say("starting a stack")
        try:
            stack.up()
            measured = asyncio.run(measure(stack, chosen, about))
        finally:
            stack.overline("down")
    print(json.dumps(measured, indent=2))
    raise SystemExit(1 if measured["reasons"] else 0)


if __name__ == "__main__":
    main()
