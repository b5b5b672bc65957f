"""The ledger against the engine's own count: what must agree whatever was killed on the way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from inference.client import TritonClient
from inference.errors import EngineError

__all__ = ["Books", "Tokens"]


@dataclass(frozen=True)
class Tokens:
    """Tokens in disjoint buckets."""

    uncached: int
    cached: int
    output: int

    def __sub__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.uncached - other.uncached,
            self.cached - other.cached,
            self.output - other.output,
        )


@dataclass
class Books:
    """Reads the ledger as its owner would, and the engine's meter as an auditor would."""

    admin_url: str
    engine: TritonClient

    def rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """Run a query past the tenant fence; waits for Postgres while it restarts."""
        deadline = time.monotonic() + 30
        while True:
            try:
                with psycopg.connect(self.admin_url, row_factory=dict_row) as connection:
                    return connection.execute(sql.encode(), values).fetchall()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def ledger(self, *task_ids: str) -> list[dict[str, Any]]:
        """Return the ledger's rows of tasks, in the order the attempts began."""
        return self.rows(
            "select * from model_calls where task_id = any (%s) order by started_at",
            [UUID(task_id) for task_id in task_ids],
        )

    def booked(self, model: str) -> Tokens:
        """Return all tokens of a model in the ledger, billed and wasted."""
        (row,) = self.rows(
            "select coalesce(sum(uncached_input_tokens), 0) as uncached,"
            " coalesce(sum(cached_input_tokens), 0) as cached,"
            " coalesce(sum(output_tokens), 0) as output from model_calls where model = %s",
            model,
        )
        return Tokens(int(row["uncached"]), int(row["cached"]), int(row["output"]))

    async def metered(self, model: str, *, limit_s: float = 60) -> Tokens:
        """Return all tokens of a model by the engine's own durable count."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                total = await self.engine.meter_totals(model)
                break
            except EngineError:
                assert time.monotonic() < deadline
        return Tokens(
            total.prompt_tokens - total.cached_tokens, total.cached_tokens, total.completion_tokens
        )

    async def assert_attempts_equal(self, rows: Sequence[dict[str, Any]]) -> None:
        """Every attempt in the ledger has the tokens that the engine counted for it."""
        for row in rows:
            if row["outcome"] == "cached":
                continue
            reading = await self.engine.meter(row["model"], row["request_id"])
            # An attempt that never reached the engine made nothing.
            counted = (
                (0, 0, 0)
                if reading is None
                else (
                    reading.prompt_tokens - reading.cached_tokens,
                    reading.cached_tokens,
                    reading.completion_tokens,
                )
            )
            booked = (row["uncached_input_tokens"], row["cached_input_tokens"])
            assert (*booked, row["output_tokens"]) == counted, (
                row["request_id"],
                row["usage_source"],
                row["outcome"],
                row["waste_cause"],
            )

    def assert_nothing_held(self, organisation_id: UUID) -> None:
        """No money is held, and what is spent is what the ledger billed."""
        open_holds = self.rows(
            "select call_key from holds where organisation_id = %s and state = 'held'",
            organisation_id,
        )
        assert open_holds == []
        (billed,) = self.rows(
            "select coalesce(sum(billed_usd), 0) as usd from model_calls"
            " where organisation_id = %s",
            organisation_id,
        )
        budgets = self.rows(
            "select scope, held_usd, spent_usd, overage_usd from budgets"
            " where organisation_id = %s and scope <> 'task'",
            organisation_id,
        )
        assert {row["scope"] for row in budgets} == {"organisation", "team", "key"}
        for row in budgets:
            assert row["held_usd"] == 0, row
            assert row["overage_usd"] == 0, row
            assert row["spent_usd"] == Decimal(billed["usd"]), row

    def assert_no_call_ran_twice(self, rows: Sequence[dict[str, Any]]) -> None:
        """Of every call at most one attempt succeeded, and only one candidate was billed."""
        for call in {row["call_key"] for row in rows}:
            own = [row for row in rows if row["call_key"] == call]
            good = [row for row in own if row["outcome"] in ("succeeded", "cached")]
            assert len(good) <= 1, own
            assert len({row["candidate"] for row in own if row["billed_usd"]}) <= 1, own
