"""What a call costs at the end of a short, a long and a very long task."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.client import Client

from tests.benchmarks.audit import history_bytes, quantiles
from tests.benchmarks.limits import Cut, Limit
from tests.benchmarks.progress import say as show
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller
from tests.integration.tasks.histories import runs_of, size_of
from tests.integration.tasks.long import MODEL, counting

__all__ = ["growth", "long_conversation"]

# Of a task, the calls that are looked at: its last ones.
LAST = 25
CONVERSATION_CALLS = 100
CONVERSATION_TOKENS = 200_000
# The most a request takes, and the window of the scripted engine holds 131,072 tokens.
MESSAGES = 400

# A step from its beginning to the next one's: the chain, the tool and the workflow in between.
_MILLISECONDS = """
select step, extract(epoch from lead(started_at) over (order by step) - started_at)::float8 * 1000
           as whole,
       extract(epoch from ended_at - started_at)::float8 * 1000 as chain
  from steps where task_id = %s::uuid order by step
"""

_ROWS = """
select sum(n)::int as n from (
  select count(*) as n from steps where task_id = %(id)s::uuid
  union all select count(*) from holds where task_id = %(id)s::uuid
  union all select count(*) from generations where task_id = %(id)s::uuid
  union all select count(*) from generation_attempts a join generations g
      using (organisation_id, generation_key) where g.task_id = %(id)s::uuid
  union all select count(*) from token_chunks where task_id = %(id)s::uuid
  union all select count(*) from task_events where task_id = %(id)s::uuid
  union all select count(*) from tool_calls where task_id = %(id)s::uuid
  union all select count(*) from model_calls where task_id = %(id)s::uuid) counted
"""


async def growth(
    client: Client,
    caller: Caller,
    books: Books,
    *,
    sizes: tuple[int, ...],
    limit: Limit,
    found: dict[str, Any],
) -> None:
    """Run a task of each size, and note what one of its last calls cost.

    A short task right after each one tells how fast the machine was just then: what a long task is
    slower than that is what grows.

    Raises:
        Cut: The time was up; the sizes that were reached are noted, and how far the last one was.
    """
    for steps in sizes:
        task_id = await caller.submit(**counting(steps, "Counted."))
        cut: Cut | None = None
        try:
            await _ended(caller, task_id, steps + 1, limit, f"growth of {steps} steps")
        except Cut as error:
            # What it did is as true as if it had been asked for no more.
            cut = error
        found[str(steps)] = await _cost_of_a_call(client, books, task_id)
        if cut is not None:
            raise cut
        new = await caller.submit(**counting(LAST, "Counted."))
        await _ended(caller, new, LAST + 1, limit, "growth, a short task beside it")
        found[str(steps)]["ms_of_a_new_task_then"] = quantiles(
            [row["whole"] for row in _milliseconds(books, new)], 1
        )


async def _ended(caller: Caller, task_id: str, calls: int, limit: Limit, what: str) -> None:
    while (task := await caller.task(task_id))["finished_at"] is None:
        stands = f"{what}: {task['steps']} of {calls} calls"
        show(stands)
        limit.check(stands)
        await asyncio.sleep(1)
    assert task["status"] == "succeeded", task


async def _cost_of_a_call(client: Client, books: Books, task_id: str) -> dict[str, Any]:
    runs = await runs_of(client, f"task-{task_id}")
    took = _milliseconds(books, task_id)
    (rows,) = books.rows(_ROWS.replace("%(id)s", "%s"), *([task_id] * _ROWS.count("%(id)s")))
    calls = len(took) + 1
    return {
        "calls": calls,
        "ms_of_the_first": quantiles([row["whole"] for row in took[1 : LAST + 1]], 1),
        "ms_of_the_last": quantiles([row["whole"] for row in took[-LAST:]], 1),
        "ms_of_the_last_chain": quantiles([row["chain"] for row in took[-LAST:]], 1),
        "events": round(sum(len(run.events) for run in runs) / calls, 1),
        "history_bytes": round(sum(size_of(run) for run in runs) / calls),
        "postgres_rows": round(rows["n"] / calls, 2),
        "runs": len(runs),
        "largest_run_bytes": max(size_of(run) for run in runs),
    }


def _milliseconds(books: Books, task_id: str) -> list[dict[str, Any]]:
    """Return what each step but the last took."""
    return [row for row in books.rows(_MILLISECONDS, task_id) if row["whole"] is not None]


async def long_conversation(
    client: Client, caller: Caller, *, limit: Limit, found: dict[str, Any]
) -> None:
    """Run 100 calls over a conversation of 200,000 tokens; notes the sizes of its history.

    Raises:
        Cut: The time was up; the history is that of the calls until then.
    """
    request = counting(CONVERSATION_CALLS - 1, "Read.")
    # Of the scripted engine a token is a byte.
    line = "x" * (CONVERSATION_TOKENS // MESSAGES)
    earlier = [
        {"role": "assistant" if number % 2 else "user", "content": line}
        for number in range(MESSAGES)
    ]
    question = request.pop("input")
    request["messages"] = [*earlier, {"role": "user", "content": question}]
    del request["limits"]["max_prompt_tokens"]
    task_id = await caller.submit(**request)
    try:
        await _ended(caller, task_id, CONVERSATION_CALLS, limit, "conversation")
    finally:
        task = await caller.task(task_id)
        sizes = await history_bytes(client, task_id)
        found |= {
            "model": MODEL,
            "calls": task["steps"],
            "conversation_tokens": CONVERSATION_TOKENS,
            "prompt_tokens_sent": task["prompt_tokens"],
            "runs": len(sizes),
            "history_bytes": sum(sizes),
            "history_bytes_max": max(sizes),
        }
