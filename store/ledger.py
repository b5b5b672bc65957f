"""Upkeep of the ledger."""

from __future__ import annotations

from store.database import Database


async def ensure_partitions(db: Database, *, months: int = 3) -> int:
    """Makes the ledger's partitions of this month and the following ones.

    Migrating makes a year of them; a process that lives longer calls this once a day. A month
    without a partition is booked in the default one, so nothing fails meanwhile.

    Args:
        months: how many months ahead.

    Returns:
        How many were missing.
    """
    rows = await db.run_untenanted("select ensure_partitions(%s) as made", (months,))
    return int(rows[0]["made"])
