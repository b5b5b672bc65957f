"""The lines of a batch: filed once, taken by one slot at a time, ended once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal
from uuid import UUID

from store.database import Database, Params

__all__ = [
    "EndedLine",
    "LineResult",
    "NewLine",
    "Postponed",
    "TakenLine",
    "file_lines",
    "results_of",
    "resume_lines",
    "take_line",
    "waiting_lines",
    "write_line",
]


@dataclass(frozen=True, slots=True)
class NewLine:
    """A line, and where it stands in the file.

    Attributes:
        deployment_class: whose engines it waits for; empty: those of all other work.
    """

    line: int
    custom_id: str
    deployment_class: str
    part: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class TakenLine:
    """A line that a slot works on now.

    Attributes:
        tries: calls made for it that failed.
        strikes: those that it may have been at fault for itself.
    """

    line: int
    custom_id: str
    tries: int
    strikes: int
    body: bytes


@dataclass(frozen=True, slots=True)
class EndedLine:
    """What came of a line: `result` is what the batch's file will say of it."""

    line: int
    state: Literal["answered", "failed"]
    result: bytes
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    billed_usd: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Postponed:
    """A line that waits again.

    Attributes:
        after_s: for how long, at least.
        tried: a call was made for it, and failed.
        strike: it may have been at fault for that.
    """

    line: int
    after_s: float
    tried: bool = False
    strike: bool = False


@dataclass(frozen=True, slots=True)
class LineResult:
    """What came of a line, as it was written."""

    line: int
    state: Literal["answered", "failed"]
    result: bytes


async def file_lines(
    db: Database, organisation_id: UUID, batch_id: UUID, lines: Sequence[NewLine]
) -> None:
    """Files lines, each once however often it is asked; none of a batch that has ended."""
    await db.run(
        organisation_id,
        "with own as (select organisation_id, batch_id from batches where organisation_id = %s"
        " and batch_id = %s and ended_at is null for share)"
        " insert into batch_lines (organisation_id, batch_id, line, custom_id, class, part, start,"
        " size) select own.*, v.* from own, unnest(%s::int[], %s::text[], %s::text[], %s::int[],"
        " %s::int[], %s::int[]) v on conflict do nothing",
        (
            organisation_id,
            batch_id,
            [each.line for each in lines],
            [each.custom_id for each in lines],
            [each.deployment_class for each in lines],
            [each.part for each in lines],
            [each.start for each in lines],
            [each.size for each in lines],
        ),
    )


async def waiting_lines(db: Database, organisation_id: UUID, batch_id: UUID) -> dict[str, int]:
    """How many lines wait for which engines, as they were filed."""
    rows = await db.run(
        organisation_id,
        "select class, count(*) as lines from batch_lines where organisation_id = %s"
        " and batch_id = %s and state = 'waiting' group by class order by class",
        (organisation_id, batch_id),
    )
    return {row["class"]: row["lines"] for row in rows}


async def resume_lines(db: Database, organisation_id: UUID, batch_id: UUID) -> dict[str, int]:
    """Has every line that is at work wait again, and returns as `waiting_lines`.

    For a batch whose workflow begins anew: its slots may be fewer, so nobody would take them up.
    """
    await db.run(
        organisation_id,
        "update batch_lines set state = 'waiting', slot = null"
        " where organisation_id = %s and batch_id = %s and state = 'running'",
        (organisation_id, batch_id),
    )
    return await waiting_lines(db, organisation_id, batch_id)


async def take_line(
    db: Database,
    organisation_id: UUID,
    batch_id: UUID,
    *,
    deployment_class: str,
    slot: int,
    before: EndedLine | Postponed | None = None,
) -> TakenLine | float | None:
    """Gives a slot its next line, and writes down what came of the one before; one round trip.

    Returns:
        The line it had begun, or the first that waits; how many seconds until one may be tried
        again; or None when there is nothing left to begin.
    """
    statements: list[tuple[str, Params]] = []
    if before is not None:
        statements.append(_written(organisation_id, batch_id, slot, before))
    statements.append(
        (
            "select * from take_batch_line(%s, %s, %s, %s)",
            (organisation_id, batch_id, deployment_class, slot),
        )
    )
    row = (await db.run_many(organisation_id, statements))[-1][0]
    if row["line"] is None:
        wait_s: float | None = row["wait_s"]
        return wait_s
    return TakenLine(
        row["line"], row["custom_id"], row["tries"], row["strikes"], bytes(row["body"] or b"")
    )


async def write_line(
    db: Database, organisation_id: UUID, batch_id: UUID, slot: int, done: EndedLine | Postponed
) -> None:
    """Writes down what came of the line that a slot worked on. Safe to repeat."""
    await db.run(organisation_id, *_written(organisation_id, batch_id, slot, done))


def _written(
    organisation_id: UUID, batch_id: UUID, slot: int, done: EndedLine | Postponed
) -> tuple[str, Params]:
    # A late attempt of the slot changes nothing: the line is not running any more.
    where = (
        " where organisation_id = %s and batch_id = %s and line = %s and slot = %s"
        " and state = 'running'"
    )
    place = (organisation_id, batch_id, done.line, slot)
    if isinstance(done, Postponed):
        again = (
            "update batch_lines set state = 'waiting', slot = null, tries = tries + %s,"
            f" strikes = strikes + %s, not_before = now() + make_interval(secs => %s){where}"
        )
        return again, (int(done.tried), int(done.strike), done.after_s, *place)
    ended = (
        "update batch_lines set state = %s, slot = null, result = %s, prompt_tokens = %s,"
        " cached_tokens = %s, completion_tokens = %s, reasoning_tokens = %s,"
        f" billed_usd = %s{where}"
    )
    return ended, (
        done.state,
        done.result,
        done.prompt_tokens,
        done.cached_tokens,
        done.completion_tokens,
        done.reasoning_tokens,
        done.billed_usd,
        *place,
    )


async def results_of(
    db: Database, organisation_id: UUID, batch_id: UUID, *, after: int, limit: int
) -> list[LineResult]:
    """What came of the lines after one of them, in their order."""
    rows = await db.run(
        organisation_id,
        "select line, state, result from batch_lines where organisation_id = %s and batch_id = %s"
        " and line > %s and state in ('answered', 'failed') order by line limit %s",
        (organisation_id, batch_id, after, limit),
    )
    return [LineResult(row["line"], row["state"], bytes(row["result"])) for row in rows]
