"""How the demo shows its evidence: tables, and what each promise came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from rich.table import Table

from api.cli.render import money
from deploy.evidence import Evidence

__all__ = ["Watched", "checks_of_first", "checks_of_second", "ledger_table", "spend_table"]

Check = tuple[bool, str]


@dataclass
class Watched:
    """What the demo saw of the first run as it streamed.

    Attributes:
        task: Id of the task.
        step: Step whose generation was interrupted.
        reached: Tokens in the journal when the worker was dead.
        text: The answer as it was streamed.
        resets: How often the stream had to start an answer anew.
    """

    task: str = ""
    step: int = 0
    reached: int = 0
    text: str = ""
    resets: int = 0


def checks_of_first(
    first: Watched, task: Mapping[str, Any], evidence: Evidence, counted: int
) -> list[Check]:
    """Hold the first run to the promises.

    Args:
        first: What was streamed.
        task: The task as the API shows it.
        evidence: What the database holds.
        counted: Output tokens by the engine's own count.
    """
    attempts = evidence.attempts
    before = attempts[0]["journaled"] if attempts else 0
    after = attempts[1]["journaled"] if len(attempts) > 1 else 0
    produced = attempts[1]["completion_tokens"] if len(attempts) > 1 else None
    used = {row["name"] for row in evidence.tools if row["ok"]}
    output = sum(row["output_tokens"] for row in evidence.ledger)
    resumed = (
        f"the answer was cut at token {before} and resumed there: "
        f"the second attempt made the other {after} and no more"
    )
    return [
        (used == {"search", "calculator"}, "the task searched, calculated and wrote an answer"),
        (
            len(attempts) == 2 and before == first.reached and produced == after > 0,
            resumed,
        ),
        (
            first.resets == 0 and first.text == task["answer"],
            "what was streamed across the crash is the answer, without gap or repeat",
        ),
        (evidence.each_call_once, "no completed call and no tool ran twice"),
        (
            evidence.billed_usd == _usd(task["cost_usd"]) > 0,
            f"the ledger's rows add up to what the task cost: {money(task['cost_usd'])}",
        ),
        (counted == output, f"the ledger equals the engine's own count: {counted} output tokens"),
    ]


def checks_of_second(
    task: Mapping[str, Any], second: Mapping[str, Any], evidence: Evidence, repeated: Evidence
) -> list[Check]:
    """Hold the second run to what the cache promises; `evidence` and `repeated` are of both."""
    saved = _usd(second["saved_usd"])
    return [
        (second["answer"] == task["answer"], "asked again, the answer is the same"),
        (
            all(row["outcome"] == "cached" for row in repeated.ledger)
            and len({row["step"] for row in repeated.ledger})
            == len({row["step"] for row in evidence.ledger})
            and _usd(second["cost_usd"]) == 0
            and saved == evidence.worth_usd,
            f"the cache gave it for nothing and says what it saved: {money(saved)}",
        ),
    ]


def _usd(amount: object) -> Decimal:
    return Decimal(str(amount))


def ledger_table(evidence: Evidence) -> Table:
    """Return the rows of the ledger."""
    table = Table(title="model_calls: the ledger, one row an attempt", title_justify="left")
    for name in ("step", "attempt", "outcome", "waste", "in", "cached", "out", "billed", "wasted"):
        table.add_column(name, justify="left" if name in ("outcome", "waste") else "right")
    for row in evidence.ledger:
        table.add_row(
            str(row["step"]),
            str(row["epoch"]),
            row["outcome"],
            row["waste_cause"] or "",
            str(row["uncached_input_tokens"]),
            str(row["cached_input_tokens"]),
            str(row["output_tokens"]),
            money(row["billed_usd"]),
            money(row["waste_usd"]),
        )
    return table


def spend_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows of the spend view."""
    table = Table(title="select * from spend_by_team_month", title_justify="left")
    for name in rows[0] if rows else ():
        table.add_column(name.removesuffix("_usd"), justify="right")
    for row in rows:
        table.add_row(*(money(v) if name.endswith("_usd") else str(v) for name, v in row.items()))
    return table
