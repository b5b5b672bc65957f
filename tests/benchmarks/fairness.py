"""How long another team's many calls hold up one call, with the fairness key and without.

An engine with few slots, as a worker of its own takes them; one team queues many equal calls, then
a single call comes. What it waits is told in calls: units of the time that one takes. Without the
key is the same with the single call of the same team, where it is first come, first served.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any
from uuid import uuid4

from tests.benchmarks.limits import Limit
from tests.benchmarks.progress import say as show
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, say, words
from tests.integration.tasks.places import MODEL, Place, place

__all__ = ["fairness"]

SLOTS = 2
QUEUED = 60
# Long against what everything around the engine takes.
CALL_MS = 400
TOKENS = 40
# Calls of the team with the long answers and of the one with the short ones: equal in tokens.
LONG_TOKENS, SHORT_TOKENS = 160, 40
SHARED_CALLS = 24


async def fairness(
    stack: RunningStack, books: Books, *, limit: Limit, found: dict[str, Any]
) -> None:
    """Measure and note `delay_ratio` and what it is made of.

    Raises:
        Cut: The time was up.
    """
    found |= {"slots": SLOTS, "queued": QUEUED, "call_ms": CALL_MS}
    async with place(stack, SLOTS) as here:
        for name, level, same_team in (
            ("with_key", "default", False),
            ("without_key", "default", True),
            ("interactive", "interactive", True),
            ("batch", "batch", False),
        ):
            limit.check(f"before {name}")
            show(f"fairness: {name}")
            found[name] = await _single(here, books, level=level, same_team=same_team)
        found["delay_ratio"] = round(
            found["with_key"]["delay_calls"] / found["without_key"]["delay_calls"], 4
        )
        limit.check("before shares")
        show("fairness: shares")
        found["shares"] = await _shares(here, books)


async def _single(here: Place, books: Books, *, level: str, same_team: bool) -> dict[str, Any]:
    """Queue many calls of one team, then one; what that one waited."""
    many = here.team("interactive")
    one = many if same_team else here.team("interactive")
    theirs = [await many.submit(**_call(TOKENS, CALL_MS)) for _ in range(QUEUED)]
    await _staged(books, many, QUEUED)
    single = await one.submit(**_call(TOKENS, CALL_MS), priority=level)
    read = await one.ended(single, limit_s=240)
    assert read["status"] == "succeeded", read
    (row,) = books.ledger(single)
    arrived = _arrived(books, single)
    before = [at["started_at"] for at in books.ledger(*theirs)]
    for task_id in theirs:
        await many.cancel(task_id)
    for task_id in theirs:
        await many.ended(task_id)
    waited_ms = (row["started_at"] - arrived).total_seconds() * 1000
    return {
        "delay_calls": round(waited_ms / CALL_MS, 2),
        "delay_ms": round(waited_ms),
        "went_before": sum(arrived < at < row["started_at"] for at in before),
    }


async def _shares(here: Place, books: Books) -> dict[str, Any]:
    """Two teams that always have calls waiting, one's four times as long: who makes how much."""
    teams = {LONG_TOKENS: here.team(), SHORT_TOKENS: here.team()}
    for tokens, team in teams.items():
        # What the ledger has to know of them.
        for _ in range(2):
            await team.answered(**_call(tokens, CALL_MS * tokens / LONG_TOKENS))
    asked: dict[int, list[str]] = {tokens: [] for tokens in teams}
    for number in range(SHARED_CALLS * LONG_TOKENS // SHORT_TOKENS):
        for tokens, team in teams.items():
            if tokens == SHORT_TOKENS or number < SHARED_CALLS:
                call = _call(tokens, CALL_MS * tokens / LONG_TOKENS)
                asked[tokens].append(await team.submit(**call))
    for tokens, team in teams.items():
        await asyncio.gather(*(team.ended(each, limit_s=240) for each in asked[tokens]))
    calls = {tokens: books.ledger(*ids) for tokens, ids in asked.items()}
    # While both had calls waiting.
    first = max(rows[SLOTS]["started_at"] for rows in calls.values())
    last = min(rows[-1]["started_at"] for rows in calls.values())
    made = {
        tokens: sum(
            row["uncached_input_tokens"] + row["output_tokens"]
            for row in rows
            if first < row["started_at"] < last
        )
        for tokens, rows in calls.items()
    }
    return {
        "tokens_of_long_answers": made[LONG_TOKENS],
        "tokens_of_short_answers": made[SHORT_TOKENS],
        "long_over_short": round(made[LONG_TOKENS] / max(1, made[SHORT_TOKENS]), 2),
    }


def _call(tokens: int, call_ms: float) -> dict[str, Any]:
    """Return a request whose answer takes that long; of the scripted engine a token is a byte."""
    text = words(tokens)[:tokens]
    question = f"{uuid4()} " + say(text, pace_ms=round(call_ms / tokens, 2))
    return {"input": question, "model": MODEL, "cache": "off", "sampling": {"max_tokens": 512}}


def _arrived(books: Books, task_id: str) -> datetime:
    (row,) = books.rows("select created_at from generations where task_id = %s::uuid", task_id)
    at = row["created_at"]
    assert isinstance(at, datetime)
    return at


async def _staged(books: Books, caller: Caller, count: int) -> None:
    """Wait until so many of a team's calls are on their way to the engine."""
    asked = "select count(*)::int as n from generations where organisation_id = %s"
    while (await asyncio.to_thread(books.rows, asked, caller.organisation_id))[0]["n"] < count:
        await asyncio.sleep(0.1)
