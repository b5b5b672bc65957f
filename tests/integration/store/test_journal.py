"""The journal and the event stream: fenced, gapless, resumable."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.database import Database
from store.errors import JournalGap, NotFound
from store.events import append_event, read_events
from store.journal import (
    AttemptTimings,
    AttemptUsage,
    UnresolvedAttempt,
    append_chunk,
    begin_attempt,
    finish_attempt,
    pack,
    resolve_attempt,
    stage_prompt,
    unpack,
    unresolved_attempts,
)
from store.step_calls import ChosenCall
from store.tasks import load_transcript
from store.tools import record_tool_call
from tests.integration.store.calls import MODEL, admit_call, file_task, generate, stage
from tests.integration.store.conftest import Tenant

USAGE = AttemptUsage(100, 0, 3, "engine")


async def ready(db: Database, tenant: Tenant) -> str:
    """A task with one admitted call and a staged prompt; its generation key."""
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id)
    return await stage(db, tenant, task_id)


async def begin(db: Database, tenant: Tenant, key: str):  # type: ignore[no-untyped-def]
    return await begin_attempt(
        db,
        organisation_id=tenant.organisation_id,
        generation_key=key,
        replica="127.0.0.1:1",
        temporal_attempt=1,
    )


async def append(db: Database, tenant: Tenant, key: str, epoch: int, seq: int, text: str) -> bool:
    return await append_chunk(
        db,
        organisation_id=tenant.organisation_id,
        generation_key=key,
        epoch=epoch,
        seq=seq,
        token_ids=[ord(c) for c in text],
        text=text,
    )


async def finish(db: Database, tenant: Tenant, key: str, epoch: int, seq: int) -> bool:
    return await finish_attempt(
        db,
        organisation_id=tenant.organisation_id,
        generation_key=key,
        epoch=epoch,
        seq=seq,
        token_ids=[33],
        text="!",
        usage=USAGE,
        finish_reason="stop",
        stop_reason="2",
        timings=AttemptTimings(1.0, 2.0, 3.0),
    )


async def test_only_the_newest_attempt_writes(db: Database, tenant: Tenant) -> None:
    key = await ready(db, tenant)
    first = await begin(db, tenant, key)
    assert (first.epoch, first.next_seq, first.generated_ids, first.text) == (1, 0, [], "")
    assert first.prompt_ids == list(range(100))
    assert await append(db, tenant, key, 1, 0, "ab")
    second = await begin(db, tenant, key)
    assert (second.epoch, second.next_seq, second.text) == (2, 1, "ab")
    assert second.generated_ids == [97, 98]
    assert second.request_id == f"{key}@2"
    assert second.unresolved == [UnresolvedAttempt(1, f"{key}@1", "127.0.0.1:1", 2)]
    assert not await append(db, tenant, key, 1, 1, "zombie")
    assert not await finish(db, tenant, key, 1, 1)
    assert await append(db, tenant, key, 2, 1, "c")
    assert await finish(db, tenant, key, 2, 2)
    assert not await append(db, tenant, key, 2, 3, "late")
    third = await begin(db, tenant, key)
    assert third.finished is not None
    assert (third.finished.text, third.finished.completion_tokens) == ("abc!", 2 + 3)
    assert (third.finished.finish_reason, third.finished.stop_reason) == ("stop", "2")
    assert third.finished.timings == AttemptTimings(1.0, 2.0, 3.0)
    assert third.epoch == 2  # nothing was opened


async def test_a_repeated_chunk_is_written_once_and_a_gap_is_refused(
    db: Database, tenant: Tenant
) -> None:
    key = await ready(db, tenant)
    await begin(db, tenant, key)
    assert await append(db, tenant, key, 1, 0, "ab")
    assert await append(db, tenant, key, 1, 0, "ab")
    with pytest.raises(JournalGap):
        await append(db, tenant, key, 1, 2, "x")
    assert await finish(db, tenant, key, 1, 1)
    assert await finish(db, tenant, key, 1, 1)
    rows = await db.run(tenant.organisation_id, "select seq, text from token_chunks order by seq")
    assert rows == [{"seq": 0, "text": "ab"}, {"seq": 1, "text": "!"}]


async def test_a_staged_prompt_stands_once_an_attempt_has_begun(
    db: Database, tenant: Tenant
) -> None:
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id)
    key = await stage(db, tenant, task_id, prompt=5)
    assert await stage(db, tenant, task_id, prompt=7) == key
    assert len((await begin(db, tenant, key)).prompt_ids) == 7
    await stage(db, tenant, task_id, prompt=9)
    assert len((await begin(db, tenant, key)).prompt_ids) == 7
    with pytest.raises(NotFound):
        await begin(db, tenant, "no such generation")


async def test_after_a_failed_or_cancelled_attempt_another_goes_on(
    db: Database, tenant: Tenant
) -> None:
    key = await ready(db, tenant)
    for epoch, outcome in ((1, "failed"), (2, "cancelled")):
        begun = await begin(db, tenant, key)
        assert begun.epoch == epoch
        assert begun.finished is None
        assert await finish_attempt(
            db,
            organisation_id=tenant.organisation_id,
            generation_key=key,
            epoch=epoch,
            seq=begun.next_seq,
            token_ids=[1],
            text="x",
            usage=USAGE,
            finish_reason=None,
            outcome=outcome,  # type: ignore[arg-type]
        )
    assert (await begin(db, tenant, key)).text == "xx"
    assert [u.epoch for u in await unresolved_attempts(db, tenant.organisation_id, key)] == [3]


async def test_an_attempt_is_resolved_once(db: Database, tenant: Tenant) -> None:
    key = await ready(db, tenant)
    await begin(db, tenant, key)

    async def resolve(tokens: int) -> bool:
        return await resolve_attempt(
            db,
            organisation_id=tenant.organisation_id,
            generation_key=key,
            epoch=1,
            usage=AttemptUsage(100, 120, tokens, "engine"),
            outcome="lost",
            cause="worker_lost",
        )

    assert sorted(await asyncio.gather(*(resolve(n) for n in (5, 6, 7)))) == [False, False, True]
    rows = await db.run(tenant.organisation_id, "select * from generation_attempts")
    # A cached part larger than the whole is cut to it rather than refused.
    assert (rows[0]["prompt_tokens"], rows[0]["cached_tokens"]) == (100, 100)


async def test_text_that_postgres_cannot_hold_does_not_lose_the_answer(
    db: Database, tenant: Tenant
) -> None:
    key = await ready(db, tenant)
    await begin(db, tenant, key)
    assert await append(db, tenant, key, 1, 0, "a\x00b\ud800c")
    task = (await db.run(tenant.organisation_id, "select task_id from tasks"))[0]["task_id"]
    events = await read_events(db, tenant.organisation_id, task)
    assert events[-1].payload["text"] == "a\ufffdb\ufffdc"
    assert (await begin(db, tenant, key)).generated_ids == [97, 0, 98, 0xD800, 99]
    await append_event(
        db, tenant.organisation_id, task, None, "note", {"k\x00": ["\ud800", {"n": 1.5}]}
    )
    events = await read_events(db, tenant.organisation_id, task)
    assert events[-1].payload == {"k\ufffd": ["\ufffd", {"n": 1.5}]}


async def test_many_writers_leave_neither_gap_nor_repeat(db: Database, tenant: Tenant) -> None:
    task_id = await file_task(db, tenant)
    org = tenant.organisation_id
    for step in (1, 2, 3):
        await admit_call(db, tenant, task_id, step)
    keys = [await stage(db, tenant, task_id, step) for step in (1, 2, 3)]

    async def note(n: int) -> None:
        # Each mark is offered by two writers and must be written by one.
        await append_event(db, org, task_id, 1, "note", {"n": n // 2}, f"note.{n // 2}")

    await asyncio.gather(
        *(generate(db, tenant, key) for key in keys), *(note(n) for n in range(40))
    )
    events = await read_events(db, org, task_id)
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert sorted(e.payload["n"] for e in events if e.type == "note") == list(range(20))
    assert len(events) == 1 + 3 + 6 + 20
    # In pages, from anywhere, the stream is the same.
    for size in (1, 3, 7):
        paged, after = [], 0
        while page := await read_events(db, org, task_id, after, size):
            assert len(page) <= size
            paged += page
            after = page[-1].seq
        assert paged == events
    assert events[0].id == "0:1"
    assert {e.id for e in events if e.step} == {f"{e.step}:{e.seq}" for e in events if e.step}


async def test_a_fallback_tells_readers_to_start_afresh(db: Database, tenant: Tenant) -> None:
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id)
    first = await stage(db, tenant, task_id)
    await begin(db, tenant, first)
    await append(db, tenant, first, 1, 0, "half an ans")
    second = await stage(db, tenant, task_id, candidate=1)
    await begin(db, tenant, second)
    await begin(db, tenant, second)
    resets = [
        e for e in await read_events(db, tenant.organisation_id, task_id) if e.type == "reset"
    ]
    assert [(e.step, e.payload["reason"], e.payload["candidate"]) for e in resets] == [
        (1, "fallback", 1)
    ]


async def test_a_tool_attempt_is_recorded_once_and_its_result_joins_the_transcript(
    db: Database, tenant: Tenant
) -> None:
    from datetime import UTC, datetime

    from store.money import Settlement, settle

    org = tenant.organisation_id
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id)
    key = await stage(db, tenant, task_id)
    await generate(db, tenant, key)
    call = {"id": "c1", "name": "calculator", "arguments": {"expression": "12*7"}}
    await settle(
        db,
        Settlement(
            org, task_id, 1, f"{task_id}:1", "succeeded", generation_key=key, tool_call=call
        ),
    )

    async def record(attempt: int, result: str | None, error: str | None) -> bool:
        return await record_tool_call(
            db,
            organisation_id=org,
            task_id=task_id,
            step=1,
            call_id="c1",
            name="calculator",
            attempt=attempt,
            arguments={"expression": "12*7"},
            result_text=result,
            ok=error is None,
            error=error,
            started_at=datetime.now(UTC),
            ended_at=datetime.now(UTC),
        )

    assert await record(1, None, "timed out")
    assert await record(2, "84", None)
    assert not await record(2, "85", None)
    transcript = await load_transcript(db, org, task_id)
    assert transcript.input["messages"][0]["content"] == "hello"
    (step,) = transcript.steps
    assert (step.step, step.text) == (1, "hello world")
    assert step.calls == [ChosenCall("calculator", {"expression": "12*7"}, result="84")]
    events = [e for e in await read_events(db, org, task_id) if e.type == "tool.completed"]
    assert [(e.payload["attempt"], e.payload["ok"]) for e in events] == [(1, False), (2, True)]
    with pytest.raises(NotFound):
        await load_transcript(db, org, org)


async def test_results_of_a_step_with_several_calls_are_kept_by_place_whoever_is_first(
    db: Database, tenant: Tenant
) -> None:
    from datetime import UTC, datetime

    from store.money import Settlement, settle

    org = tenant.organisation_id
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id)
    key = await stage(db, tenant, task_id)
    await generate(db, tenant, key)
    calls = [{"name": "t", "arguments": {"n": n}} for n in range(1, 9)]
    await settle(
        db,
        Settlement(
            org, task_id, 1, f"{task_id}:1", "succeeded", generation_key=key, tool_call=calls
        ),
    )
    now = datetime.now(UTC)

    async def record(place: int) -> bool:
        return await record_tool_call(
            db,
            organisation_id=org,
            task_id=task_id,
            step=1,
            call_id=f"c{place}",
            name="t",
            attempt=1,
            arguments={"n": place},
            result_text=f"result {place}",
            ok=place != 3,
            error="no" if place == 3 else None,
            started_at=now,
            ended_at=now,
            place=place,
        )

    assert all(await asyncio.gather(*(record(place) for place in (7, 3, 1, 8, 2, 6, 5))))
    (step,) = (await load_transcript(db, org, task_id)).steps
    assert [call.place for call in step.calls] == list(range(1, 9))
    assert [call.result for call in step.calls] == [
        None if place == 4 else f"result {place}" for place in range(1, 9)
    ]
    assert [call.ok for call in step.calls] == [True, True, False, None, True, True, True, True]
    assert step.calls[6].call_id == "c7"


async def test_no_event_joins_a_task_that_is_not_there(db: Database, tenant: Tenant) -> None:
    with pytest.raises(NotFound):
        await append_event(db, tenant.organisation_id, tenant.key_id, None, "note", {})


async def test_a_generation_key_may_be_given(db: Database, tenant: Tenant) -> None:
    task_id = await file_task(db, tenant)
    await admit_call(db, tenant, task_id)
    await stage_prompt(
        db,
        organisation_id=tenant.organisation_id,
        generation_key=f"{task_id}:1#5",
        workflow_id="w",
        task_id=task_id,
        step=1,
        call_key=f"{task_id}:1",
        candidate=5,
        channel="tool_call",
        model=MODEL,
        model_version="1",
        tokenizer_version="t",
        deployment="d",
        prompt_ids=[2**31 - 1, 0],
    )
    begun = await begin(db, tenant, f"{task_id}:1#5")
    assert (begun.channel, begun.prompt_ids) == ("tool_call", [2**31 - 1, 0])


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_packing_loses_nothing(ids: list[int]) -> None:
    assert unpack(pack(ids)) == ids
    assert len(pack(ids)) == 4 * len(ids)
