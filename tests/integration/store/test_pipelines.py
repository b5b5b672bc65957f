"""Several statements in one round trip: what fails takes nothing with it, not even a memory."""

from __future__ import annotations

import psycopg
import pytest

from store.database import Database
from tests.integration.store.conftest import Tenant


async def test_a_connection_whose_pipeline_failed_goes_on_as_before(
    server: object, db: Database, tenant: Tenant
) -> None:
    """A statement behind the one that failed is not taken for prepared."""
    organisation = tenant.organisation_id

    async def both(divisor: int) -> list[list[dict[str, object]]]:
        return await db.run_many(
            organisation,
            [("select 6 / %s::int as one", (divisor,)), ("select %s::int as two", (divisor,))],
        )

    for _ in range(4):
        assert await both(1) == [[{"one": 6}], [{"two": 1}]]
        for _ in range(4):
            with pytest.raises(psycopg.errors.DivisionByZero):
                await both(0)
    assert await both(2) == [[{"one": 3}], [{"two": 2}]]
