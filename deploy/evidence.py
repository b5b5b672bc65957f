"""What really happened to a task, read from the ledger, the journal and the engine's own count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from inference.client import TritonClient
from settings import Settings

__all__ = ["Evidence", "Ledger", "Progress", "engine_count"]

_ATTEMPTS = """
    select a.epoch, a.outcome, a.cause, a.prompt_tokens, a.completion_tokens,
           coalesce((select sum(cardinality(c.token_ids)) from token_chunks c
                      where c.organisation_id = a.organisation_id
                        and c.step_key = a.generation_key and c.epoch = a.epoch), 0)::int
             as journaled
      from generation_attempts a
      join generations g using (organisation_id, generation_key)
     where g.task_id = %s and g.step = %s
     order by a.epoch
"""
_LEDGER = """
    select step, epoch, model, outcome, waste_cause, request_id, uncached_input_tokens,
           cached_input_tokens, output_tokens, billed_usd, waste_usd, saved_usd
      from model_calls where task_id = %s order by step, candidate, epoch
"""
_TOOLS = "select step, name, attempt, ok from tool_calls where task_id = %s order by step, attempt"
_JOURNALED = """
    select coalesce(sum(cardinality(c.token_ids)), 0)::int as tokens,
           count(distinct c.epoch)::int as attempts
      from token_chunks c join generations g
        on g.organisation_id = c.organisation_id and g.generation_key = c.step_key
     where g.task_id = %s and g.step = %s
"""
_SPEND = """
    select organisation, team, month, calls, attempts, output_tokens, billed_usd, waste_usd,
           saved_usd from spend_by_team_month
"""


@dataclass(frozen=True)
class Evidence:
    """What the database holds about one task.

    Attributes:
        ledger: Rows of the ledger: one an attempt of a model call.
        tools: Rows of the tool calls: one an attempt.
        attempts: Attempts at the step that was interrupted, each with the tokens it journaled.
    """

    ledger: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    attempts: list[dict[str, Any]]

    @property
    def billed_usd(self) -> Decimal:
        """Sum of the ledger, in USD."""
        return sum((row["billed_usd"] for row in self.ledger), Decimal(0))

    @property
    def worth_usd(self) -> Decimal:
        """What its answers cost whoever asked first, in USD: earlier runs may have left some."""
        return self.billed_usd + sum((row["saved_usd"] for row in self.ledger), Decimal(0))

    @property
    def each_call_once(self) -> bool:
        """Whether every call has exactly one attempt that succeeded, and every tool ran once."""
        good = [row["step"] for row in self.ledger if row["outcome"] in ("succeeded", "cached")]
        steps = {row["step"] for row in self.ledger}
        tools = [(row["step"], row["name"]) for row in self.tools]
        return sorted(good) == sorted(steps) and len(tools) == len(set(tools))


@dataclass(frozen=True)
class Progress:
    """How far a generation is.

    Attributes:
        tokens: Tokens in the journal.
        attempts: Attempts that have put any there.
    """

    tokens: int
    attempts: int


class Ledger:
    """The database as people read it."""

    def __init__(self, settings: Settings) -> None:
        """Connect with the role that reads everything and changes nothing."""
        url = settings.reader_database_url or settings.database_url
        self._session = psycopg.connect(
            url.get_secret_value(), autocommit=True, row_factory=dict_row
        )

    def close(self) -> None:
        """End the connection."""
        self._session.close()

    def evidence(self, task: UUID | str, step: int) -> Evidence:
        """Read what happened to a task.

        Args:
            task: The task.
            step: The step that was interrupted.
        """
        return Evidence(
            ledger=self._session.execute(_LEDGER, (task,)).fetchall(),
            tools=self._session.execute(_TOOLS, (task,)).fetchall(),
            attempts=self._session.execute(_ATTEMPTS, (task, step)).fetchall(),
        )

    def progress(self, task: UUID | str, step: int) -> Progress:
        """How far the generation of a step is now."""
        row = self._session.execute(_JOURNALED, (task, step)).fetchone()
        assert row is not None
        return Progress(row["tokens"], row["attempts"])

    def spend(self) -> list[dict[str, Any]]:
        """The view `spend_by_team_month`."""
        return self._session.execute(_SPEND).fetchall()


async def engine_count(settings: Settings, rows: Sequence[dict[str, Any]]) -> int:
    """Sum of the output tokens the engine itself counted for the attempts in ledger rows."""
    total = 0
    async with TritonClient(settings.triton_urls[0]) as client:
        for row in rows:
            if row["request_id"] is not None:
                reading = await client.meter(row["model"], row["request_id"])
                total += 0 if reading is None else reading.completion_tokens
    return total
