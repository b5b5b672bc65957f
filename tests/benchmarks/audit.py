"""What Postgres, the engine's meter and Temporal say of tasks that have ended."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from temporalio.client import Client

from tests.integration.tasks.books import Books, Tokens
from tests.integration.tasks.histories import runs_of, size_of

__all__ = ["calls", "history_bytes", "ledger_minus_engine", "quantiles", "recoveries"]

# One row a call: how often it succeeded, how often its prompt was billed, how many of its output
# tokens were billed and how many are in its answer, the end token included.
_CALLS = """
select c.call_key, c.step,
       count(*) filter (where c.outcome in ('succeeded', 'cached')) as succeeded,
       count(*) filter (where c.uncached_input_tokens + c.cached_input_tokens
           > c.wasted_uncached_input_tokens + c.wasted_cached_input_tokens) as prompts_billed,
       sum(c.output_tokens - c.wasted_output_tokens) as output_billed,
       max(octet_length(s.text)) + 1 as output_said,
       sum(c.wasted_output_tokens) as output_wasted,
       count(*) as attempts
  from model_calls c join steps s using (organisation_id, task_id, step)
 where c.task_id = any (%s) group by c.call_key, c.step order by c.step
"""

# Of each task that ran at a kill: how long until something of it was written again.
_RECOVERIES = """
with kills as (select to_timestamp(k) as at, part
                 from unnest(%s::float8[], %s::text[]) as killed (k, part)),
     happened as (
        select task_id, at from task_events where task_id = any (%s)
        union all select task_id, at from token_chunks where task_id = any (%s))
select k.part, extract(epoch from min(h.at) - k.at)::float8 as seconds
  from kills k
  join tasks t on t.task_id = any (%s) and t.started_at < k.at and t.finished_at > k.at
  join happened h on h.task_id = t.task_id and h.at > k.at
 group by k.at, k.part, t.task_id
"""


def calls(books: Books, task_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each call of some tasks; tokens of the scripted engine are bytes."""
    return books.rows(_CALLS, [UUID(task_id) for task_id in task_ids])


def recoveries(
    books: Books, task_ids: Sequence[str], kills: Sequence[tuple[float, str]]
) -> list[tuple[str, float]]:
    """Return the part and the seconds to progress, of every task at every kill.

    Args:
        books: Where to look.
        task_ids: The tasks.
        kills: When (Unix seconds), and of which part.
    """
    ids = [UUID(task_id) for task_id in task_ids]
    at, parts = [at for at, _ in kills], [part for _, part in kills]
    rows = books.rows(_RECOVERIES, at, parts, ids, ids, ids)
    return [(row["part"], row["seconds"]) for row in rows]


async def ledger_minus_engine(books: Books, model: str) -> int:
    """Return by how many tokens the ledger and the engine's own count differ, all buckets."""
    booked, metered = books.booked(model), await books.metered(model)
    apart: Tokens = booked - metered
    return abs(apart.uncached) + abs(apart.cached) + abs(apart.output)


async def history_bytes(client: Client, task_id: str) -> list[int]:
    """Return the size of each run's history, in bytes."""
    return [size_of(run) for run in await runs_of(client, f"task-{task_id}")]


def quantiles(values: Sequence[float], digits: int = 2) -> dict[str, float] | None:
    """Return the median and the 95th percentile; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return {
        "p50": round(statistics.median(ordered), digits),
        "p95": round(ordered[int(len(ordered) * 0.95)], digits),
    }
