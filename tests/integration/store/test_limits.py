"""Limits of rate, exact whoever asks at once; a refusal uses up nothing, and no slot is lost."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from uuid_utils.compat import uuid7

from store import audit, calls
from store.database import Database
from store.journal import AttemptUsage
from store.limits import Caps, list_limits, remove_limit, set_limit
from store.money import admit
from store.refusals import Refusal
from store.tasks import finish_task
from tests.integration.store.calls import MODEL, file_task, sync_test_catalogue
from tests.integration.store.conftest import Server, Tenant, make_tenant
from tests.integration.store.test_calls import PRICE, asked, ending, opened


@pytest.fixture(autouse=True)
async def _catalogue(admin_db: Database) -> None:
    await sync_test_catalogue(admin_db)


async def limited(db: Database, tenant: Tenant, model: str | None = None, **caps: int) -> None:
    made = await set_limit(
        db,
        tenant.organisation_id,
        actor="test",
        scope="key",
        scope_id=tenant.key_id,
        model=model,
        caps=Caps(**caps),
    )
    assert made is not None


async def tried(db: Database, tenant: Tenant, **fields: Any) -> calls.Known | Refusal:
    answer = await calls.open_call(db, asked(tenant, **fields))
    assert isinstance(answer, calls.Known | Refusal)
    return answer


async def close(db: Database, tenant: Tenant, known: calls.Known, **fields: Any) -> None:
    await calls.close_call(
        db, tenant.organisation_id, known.task_id, ending(known.task_id, **fields), None
    )


async def test_so_many_requests_and_not_one_more(db: Database, tenant: Tenant) -> None:
    await limited(db, tenant, requests_per_minute=10)
    answers = await asyncio.gather(*(tried(db, tenant) for _ in range(40)))
    refused = [answer for answer in answers if isinstance(answer, Refusal)]
    assert len(refused) == 30
    for refusal in refused:
        assert (refusal.code, refusal.scope) == ("rate_limited", "key")
        assert refusal.rate["measure"] == "requests"
        assert 1 <= refusal.rate["retry_after_s"] <= 6
        assert refusal.rate["requests"]["limit"] == 10
        assert refusal.rate["requests"]["remaining"] == 0
        assert 0 < refusal.rate["requests"]["reset_s"] <= 60
    left = sorted(
        answer.rate["requests"]["remaining"]
        for answer in answers
        if isinstance(answer, calls.Known) and answer.rate
    )
    assert left == list(range(10))


async def test_slots_come_back_however_a_call_ends(
    db: Database, server: Server, tenant: Tenant
) -> None:
    await limited(db, tenant, concurrent_calls=2)
    for end in ("succeeded", "failed", "cancelled", "abandoned", "ended"):
        answers = await asyncio.gather(*(tried(db, tenant) for _ in range(10)))
        live = [answer for answer in answers if isinstance(answer, calls.Known)]
        assert len(live) == 2, end
        for known in live:
            match end:
                case "abandoned":
                    await finish_task(
                        db,
                        tenant.organisation_id,
                        known.task_id,
                        status="cancelled",
                        answer=None,
                        error=None,
                    )
                case "ended":
                    await calls.end_call(
                        db,
                        tenant.organisation_id,
                        known.task_id,
                        outcome="failed",
                        winner=None,
                        error=None,
                        trace_id=None,
                    )
                case _:
                    await close(db, tenant, known, outcome=end)
        (limit,) = await list_limits(db, tenant.organisation_id)
        assert limit.open_calls == 0, end


async def test_a_refused_call_uses_up_nothing_of_any_limit(db: Database, tenant: Tenant) -> None:
    await limited(db, tenant, requests_per_minute=3, concurrent_calls=1)
    first = await opened(db, tenant)
    for _ in range(3):
        refused = await tried(db, tenant)
        assert isinstance(refused, Refusal)
        assert refused.rate["measure"] == "concurrent_calls"
        assert refused.rate["requests"]["remaining"] == 2
    await close(db, tenant, first)
    for _ in range(2):
        await close(db, tenant, await opened(db, tenant))
    refused = await tried(db, tenant)
    assert isinstance(refused, Refusal)
    assert refused.rate["measure"] == "requests"


async def test_a_budget_that_refuses_leaves_the_limits_alone(db: Database, server: Server) -> None:
    poor = make_tenant(server, key_cap=PRICE * 2)
    await limited(db, poor, requests_per_minute=50, concurrent_calls=50, tokens_per_minute=5000)
    answers = await asyncio.gather(*(tried(db, poor, longest=10) for _ in range(20)))
    codes = Counter(answer.code for answer in answers if isinstance(answer, Refusal))
    assert codes == {"budget_exceeded": 18}
    (limit,) = await list_limits(db, poor.organisation_id)
    assert limit.open_calls == 2
    assert 1 < limit.used_requests <= 2
    assert limit.used_tokens <= 2 * 20


async def test_tokens_are_reserved_at_their_most_and_corrected(
    db: Database, tenant: Tenant
) -> None:
    await limited(db, tenant, input_tokens_per_minute=1000, output_tokens_per_minute=100)
    answers = await asyncio.gather(*(tried(db, tenant, longest=32) for _ in range(20)))
    live = [answer for answer in answers if isinstance(answer, calls.Known)]
    assert len(live) == 3
    for known in live:
        await close(db, tenant, known)  # 10 tokens in, 3 out
    (limit,) = await list_limits(db, tenant.organisation_id)
    assert limit.used_output_tokens <= 9
    assert limit.used_input_tokens <= 30
    known = await opened(db, tenant, longest=90)
    assert known.rate is not None
    assert known.rate["tokens"]["limit"] == 100
    too_much = await tried(db, tenant, longest=101)
    assert isinstance(too_much, Refusal)
    assert too_much.rate["never"] is True


async def test_without_a_longest_answer_the_usual_one_is_reckoned_with(
    db: Database, tenant: Tenant
) -> None:
    await limited(db, tenant, tokens_per_minute=100)
    # Nobody knows yet: a quarter of what there is beside the prompt, which is 10 and 22 each.
    first = [await tried(db, tenant) for _ in range(4)]
    assert [type(answer) for answer in first] == [calls.Known] * 3 + [Refusal]
    for known in first[:3]:
        assert isinstance(known, calls.Known)
        await close(db, tenant, known)
    # The team's answers have three tokens now: 13 a call, of which so much is used.
    answers = await asyncio.gather(*(tried(db, tenant) for _ in range(20)))
    assert Counter(type(answer) for answer in answers) == {calls.Known: 4, Refusal: 16}


async def test_a_limit_of_a_model_is_for_that_model(db: Database, tenant: Tenant) -> None:
    await limited(db, tenant, "mock*", requests_per_minute=1)
    await limited(db, tenant, MODEL, requests_per_minute=2)
    answers = [await tried(db, tenant) for _ in range(3)]
    assert [type(answer) for answer in answers] == [calls.Known, calls.Known, Refusal]
    assert isinstance(answers[2], Refusal)
    assert answers[2].rate["model"] == MODEL
    mocks = [await tried(db, tenant, model="mock-x", staged=mock()) for _ in range(2)]
    assert [type(answer) for answer in mocks] == [calls.Known, Refusal]


async def test_a_limit_of_a_model_is_for_routes_that_may_come_to_it(
    db: Database, tenant: Tenant
) -> None:
    first = calls.Staged("first", "1", "tok-1", "d1", "127.0.0.1:1", prompt_ids=range(10))
    for name in (MODEL, MODEL[:-1] + "*"):
        await limited(db, tenant, name, requests_per_minute=2)
    # The route `default` may fall back to the model, whoever is asked first.
    answers = [await tried(db, tenant, model="default", staged=first) for _ in range(3)]
    assert [type(answer) for answer in answers] == [calls.Known, calls.Known, Refusal]
    for known in answers[:2]:
        assert isinstance(known, calls.Known)
        await close(db, tenant, known)
    assert [each.open_calls for each in await list_limits(db, tenant.organisation_id)] == [0, 0]
    assert isinstance(await tried(db, tenant, model="first", staged=first), calls.Known)


def mock() -> calls.Staged:
    return calls.Staged("mock-x", "1", "tok-1", "d1", "127.0.0.1:1", prompt_ids=range(10))


async def test_room_comes_back_with_time(db: Database, admin_db: Database, tenant: Tenant) -> None:
    await limited(db, tenant, requests_per_minute=10)
    for _ in range(10):
        await opened(db, tenant)
    assert isinstance(await tried(db, tenant), Refusal)
    await admin_db.run(
        tenant.organisation_id,
        "update rate_limits set as_of = as_of - interval '12.5 seconds' where organisation_id = %s",
        (tenant.organisation_id,),
    )
    answers = [await tried(db, tenant) for _ in range(3)]
    assert [type(answer) for answer in answers] == [calls.Known, calls.Known, Refusal]


async def test_a_step_of_a_task_waits_its_turn(db: Database, tenant: Tenant) -> None:
    await limited(db, tenant, concurrent_calls=1)
    task_id = await file_task(db, tenant)
    busy = await opened(db, tenant)

    async def step() -> object:
        return await admit(
            db,
            organisation_id=tenant.organisation_id,
            team_id=tenant.team_id,
            key_id=tenant.key_id,
            task_id=task_id,
            step=1,
            call_key=f"{task_id}:1",
            amount_usd=PRICE,
            models=[MODEL],
            input_tokens=10,
            output_tokens=10,
        )

    refused = await step()
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.rate["retry_after_s"]) == ("rate_limited", 1)
    await close(db, tenant, busy)
    assert not isinstance(await step(), Refusal)
    # Asked again, it is the same place.
    assert not isinstance(await step(), Refusal)
    (limit,) = await list_limits(db, tenant.organisation_id)
    assert limit.open_calls == 1


async def test_every_change_is_in_the_audit_log(db: Database, tenant: Tenant) -> None:
    await limited(db, tenant, requests_per_minute=10)
    await limited(db, tenant, requests_per_minute=5)
    (limit,) = await list_limits(db, tenant.organisation_id)
    assert await remove_limit(db, tenant.organisation_id, limit.limit_id, actor="test")
    assert not await remove_limit(db, tenant.organisation_id, limit.limit_id, actor="test")
    entries = await audit.read(db, tenant.organisation_id)
    assert [entry.action for entry in entries] == ["limit.set", "limit.set", "limit.removed"]
    second = entries[1].detail
    assert second["before"]["requests_per_minute"] == 10
    assert second["after"]["requests_per_minute"] == 5
    assert await audit.verify(db, tenant.organisation_id) is None


async def test_another_tenants_key_cannot_be_limited(
    db: Database, tenant: Tenant, other_tenant: Tenant
) -> None:
    for scope_id in (other_tenant.key_id, uuid7()):
        assert (
            await set_limit(
                db,
                tenant.organisation_id,
                actor="test",
                scope="key",
                scope_id=scope_id,
                model=None,
                caps=Caps(requests_per_minute=1),
            )
            is None
        )
    await limited(db, tenant, requests_per_minute=1)
    assert await list_limits(db, other_tenant.organisation_id) == []


async def test_a_call_within_another_one_uses_that_ones_slot(db: Database, tenant: Tenant) -> None:
    await limited(db, tenant, concurrent_calls=1, requests_per_minute=3)
    outer = await opened(db, tenant)
    assert isinstance(await tried(db, tenant), Refusal)
    inner = await opened(db, tenant, within=True)
    for known in (inner, outer):
        await close(db, tenant, known)
    # Nothing else is left out of account, and nobody else is let past.
    await opened(db, tenant)
    refused = await tried(db, tenant, within=True)
    assert isinstance(refused, Refusal)
    assert refused.rate["measure"] == "requests"


async def test_a_measure_without_a_cap_is_not_counted(db: Database, tenant: Tenant) -> None:
    await limited(db, tenant, concurrent_calls=50)
    for _ in range(8):
        await opened(db, tenant, longest=500)
    await limited(db, tenant, requests_per_minute=5, tokens_per_minute=1000)
    answers = [await tried(db, tenant, longest=10) for _ in range(6)]
    assert [type(answer) for answer in answers] == [*[calls.Known] * 5, Refusal]


@dataclass
class Bucket:
    """What a limit must at least have in use, had each call that is over said what it needs.

    Attributes:
        happened: when a call began and what it needs as far as is known, or another cap is set.
        ahead_s: how much later it is for the database than for us.
        unsure: of how many tokens it is not known whether they leaked at the cap before.
    """

    happened: list[tuple[float, str, list[float]]] = field(default_factory=list)
    ahead_s: float = 0
    unsure: float = 1

    def now(self) -> float:
        return time.monotonic() + self.ahead_s

    def note(self, at: float, what: str, number: float) -> list[float]:
        noted = [number]
        self.happened.append((at, what, noted))
        return noted

    def least(self) -> float:
        used, cap, then = 0.0, 0.0, 0.0
        for at, what, (number,) in [*self.happened, (self.now(), "now", [0.0])]:
            used = max(used - cap * (at - then) / 60, 0)
            then = at
            if what == "cap":
                used, cap = (used if cap and number else 0), number
            elif cap:
                used += number
        return used


# Let so much time pass for the database, by having all that was happen earlier.
SHIFTED = (("rate_limits", "as_of"), ("rate_limits", "caps_since"), ("holds", "created_at"))
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["open", "open", "close", "close", "wait", "cap"]), st.integers(1, 1000)
    ),
    min_size=4,
    max_size=14,
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES)
@example(
    # What of a reservation has leaked is not given back a second time.
    moves=[("open", 1000), ("wait", 28), ("open", 450), ("wait", 2), ("close", 2), ("open", 1000)]
)
@example(
    # Let through when there was no cap, it has used up nothing that could be given back.
    moves=[("cap", 3), ("open", 900), ("cap", 1000), ("open", 900), ("close", 2), ("open", 900)]
)
@example(
    # Let through at another rate.
    moves=[("open", 900), ("wait", 30), ("cap", 10), ("close", 2), ("open", 10)]
)
def test_whatever_is_given_back_no_more_is_let_through(
    server: Server, moves: list[tuple[str, int]]
) -> None:
    asyncio.run(_played(server, moves))


async def _played(server: Server, moves: list[tuple[str, int]]) -> None:
    tenant = make_tenant(server)
    db = await Database.open(server.app_url, max_size=2, name="property")
    admin_db = await Database.open(server.admin_url, max_size=1, name="property-admin")
    bucket = Bucket()
    live: list[tuple[calls.Known, list[float]]] = []
    cap: int | None = 1000

    async def capped() -> None:
        at = bucket.now()
        caps = {"output_tokens_per_minute": cap} if cap else {}
        await limited(db, tenant, concurrent_calls=50, **caps)
        bucket.note(at, "cap", cap or 0)
        bucket.unsure += (bucket.now() - at) * 1000 / 60

    try:
        await capped()
        for what, number in moves:
            match what:
                case "open":
                    at = bucket.now()
                    answer = await tried(db, tenant, longest=number)
                    if isinstance(answer, calls.Known):
                        live.append((answer, bucket.note(at, "open", number)))
                case "close" if live:
                    known, needs = live.pop(0)
                    needs[0] = number
                    usage = AttemptUsage(10, 0, number, "engine")
                    await close(db, tenant, known, usage=usage)
                case "wait":
                    bucket.ahead_s += number % 60
                    for table, column in SHIFTED:
                        await admin_db.run(
                            tenant.organisation_id,
                            f"update {table} set {column} = {column} - %s * interval '1 second'"
                            " where organisation_id = %s",
                            (number % 60, tenant.organisation_id),
                        )
                case "cap":
                    cap = number if number % 3 else None
                    await capped()
            (limit,) = await list_limits(db, tenant.organisation_id)
            assert limit.used_output_tokens >= bucket.least() - bucket.unsure
    finally:
        await db.close()
        await admin_db.close()
