"""What a call costs at the end of a short, a long and a very long task."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.client import Client

from tests.benchmarks.audit import history_bytes, quantiles
from tests.benchmarks.progress import say as show
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller
from tests.integration.tasks.histories import runs_of, size_of
from tests.integration.tasks.long import MODEL, WINDOW_TOKENS, counting

__all__ = ["growth", "long_conversation"]

# Of a task, the calls that are looked at: its last ones.
LAST = 25
CONVERSATION_CALLS = 100
CONVERSATION_TOKENS = 200_000
# The most a request takes, and the window of the scripted engine holds 131,072 tokens.
MESSAGES = 400

_MILLISECONDS = """
select extract(epoch from ended_at - started_at)::float8 * 1000 as ms from steps
 where task_id = %s::uuid and step > %s - %s and step < %s
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
    client: Client, caller: Caller, books: Books, sizes: tuple[int, ...]
) -> dict[str, Any]:
    """Run a task of each size, and return what one of its last calls cost."""
    found: dict[str, Any] = {}
    for steps in sizes:
        task_id = await caller.submit(**counting(steps, "Counted."))
        while (task := await caller.task(task_id))["finished_at"] is None:
            show(f"growth: {task['steps']} of {steps + 1} steps")
            await asyncio.sleep(1)
        assert task["status"] == "succeeded", task
        runs = await runs_of(client, f"task-{task_id}")
        took = books.rows(_MILLISECONDS, task_id, steps, LAST, steps + 1)
        (rows,) = books.rows(_ROWS.replace("%(id)s", "%s"), *([task_id] * _ROWS.count("%(id)s")))
        found[str(steps)] = {
            "ms_of_the_last": quantiles([row["ms"] for row in took], 1),
            "events": round(sum(len(run.events) for run in runs) / (steps + 1), 1),
            "history_bytes": round(sum(size_of(run) for run in runs) / (steps + 1)),
            "postgres_rows": round(rows["n"] / (steps + 1), 2),
            "runs": len(runs),
            "largest_run_bytes": max(size_of(run) for run in runs),
        }
    return {"window_tokens": WINDOW_TOKENS, "per_call_at": found}


async def long_conversation(client: Client, caller: Caller) -> dict[str, Any]:
    """Run 100 calls over a conversation of 200,000 tokens; returns the sizes of its history."""
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
    while (task := await caller.task(task_id))["finished_at"] is None:
        show(f"conversation: {task['steps']} of {CONVERSATION_CALLS} calls")
        await asyncio.sleep(1)
    assert task["status"] == "succeeded", task
    sizes = await history_bytes(client, task_id)
    return {
        "model": MODEL,
        "calls": task["steps"],
        "conversation_tokens": CONVERSATION_TOKENS,
        "prompt_tokens_sent": task["prompt_tokens"],
        "runs": len(sizes),
        "history_bytes": sum(sizes),
        "history_bytes_max": max(sizes),
    }
