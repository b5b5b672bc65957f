"""What is too large for a history is kept beside it; what is too large for anything is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import Replayer, Worker

from settings import Settings
from store.database import Database
from store.payloads import PayloadShelf
from tests.chaos.victims import kill, pids_of
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, choose, say, words
from tests.integration.tasks.histories import runs_of, size_of
from tests.integration.tasks.large_workflows import PassOn, make, measure
from workflows.client import connect_kwargs, data_converter
from workflows.large_payloads import claim_in

MB = 1_000_000


@pytest_asyncio.fixture(scope="module")
async def shelf(stack: RunningStack) -> AsyncIterator[PayloadShelf]:
    database = await Database.open(stack.settings.database_url.get_secret_value(), max_size=4)
    yield PayloadShelf(database, keep=timedelta(days=30))
    await database.close()


@pytest_asyncio.fixture(scope="module")
async def client(stack: RunningStack, shelf: PayloadShelf) -> AsyncIterator[Client]:
    settings = stack.settings
    client = await Client.connect(settings.temporal_address, **connect_kwargs(settings, shelf))
    async with Worker(client, task_queue="large", workflows=[PassOn], activities=[make, measure]):
        yield client


async def _pass_on(client: Client, sizes: list[int], workflow_id: str | None = None) -> Any:
    return await client.start_workflow(
        PassOn.run, sizes, id=workflow_id or f"large-{uuid4()}", task_queue="large"
    )


async def test_megabytes_pass_and_the_history_stays_small(
    client: Client, shelf: PayloadShelf, caller: Caller, books: Books, stack: RunningStack
) -> None:
    """3 MB as an input would leave a run for ever; 5 MB as a result would be tried for ever."""
    # An id that says whose it is: what it passes on is that tenant's.
    name = f"scheduled-{caller.organisation_id}-{uuid4()}"
    handle = await _pass_on(client, [5 * MB, -3 * MB, 70], name)
    assert await handle.result() == [4_999_995, 3 * MB, 70]
    (history,) = await runs_of(client, handle.id)
    assert size_of(history) < 20_000
    kept = books.rows(
        "select organisation_id, sha256, data, keep_until from blobs where workflow_id = %s",
        handle.id,
    )
    # The text of 5 MB is a result once and an input once.
    assert len(kept) == 3
    for row in kept:
        assert row["organisation_id"] == caller.organisation_id
        assert b"secret" not in bytes(row["data"])
        assert b"xxxxxxxx" not in bytes(row["data"])
    converter = data_converter(stack.settings, shelf)
    namespace = stack.settings.temporal_namespace
    replayer = Replayer(workflows=[PassOn], data_converter=converter, namespace=namespace)
    await replayer.replay_workflow(history)
    without = Replayer(
        workflows=[PassOn], data_converter=data_converter(stack.settings), namespace=namespace
    )
    result = await without.replay_workflow(history, raise_on_replay_failure=False)
    assert isinstance(result.replay_failure, RuntimeError)


async def test_what_exceeds_the_cap_ends_the_run_once_and_says_how_large_it_is(
    client: Client, stack: RunningStack
) -> None:
    cap = stack.settings.payload_max_bytes
    with pytest.raises(WorkflowFailureError) as failed:
        await (await _pass_on(client, [-cap])).result()
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.non_retryable) == ("PayloadTooLarge", True)
    assert f"a str of {cap + 2:,} bytes is more than the {cap:,}" in cause.message
    handle = await _pass_on(client, [cap + 8])
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert isinstance(failed.value.cause, ActivityError)
    cause = failed.value.cause.cause
    assert failed.value.cause.activity_type == "make"
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.non_retryable) == ("PayloadTooLarge", True)
    attempts = [
        event.activity_task_started_event_attributes.attempt
        for event in (await handle.fetch_history()).events
        if event.HasField("activity_task_started_event_attributes")
    ]
    assert attempts == [1]


@pytest.mark.timeout(300)
async def test_a_worker_that_dies_finds_what_was_kept(
    own_stack: Callable[..., RunningStack], tmp_path: Path
) -> None:
    """Nearly every payload is kept outside here, so every part has to fetch them."""
    stack = own_stack(OVERLINE_PAYLOAD_INLINE_BYTES="1024")
    stack.up()
    caller = Caller.made(stack.admin_url, stack.state().urls["api"])
    question = choose({"tool": "calculator", "expression": "6*7"}) + say(words(80), pace_ms=15)
    tools = [{"name": "calculator", "must_call": True}]
    task_id = await caller.submit(
        question, model="scripted", tools=tools, sampling={"max_tokens": 2000}
    )
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text(2)) > 60)
        kill(await pids_of("worker", stack, task_id))
        last = await watcher.to_end()
        watcher.assert_once_and_in_order()
    assert last.type == "task.succeeded"
    with psycopg.connect(stack.admin_url) as connection:
        (kept,) = connection.execute(
            "select count(*) from blobs where workflow_id = %s and organisation_id = %s",
            (f"task-{task_id}", caller.organisation_id),
        ).fetchone() or (0,)
    assert kept > 3

    assert stack.json("replay", task_id)["replays"]
    bundle = tmp_path / "b.zip"
    stack.json("export", task_id, "-o", str(bundle))
    elsewhere = RunningStack(tmp_path / "elsewhere")
    assert elsewhere.json("replay", str(bundle))["replays"]

    settings = stack.settings
    await _reads_by_codec(settings, caller, task_id, stack.state().urls["api"])

    with psycopg.connect(stack.admin_url, autocommit=True) as connection:
        connection.execute("delete from blobs where workflow_id = %s", (f"task-{task_id}",))
    told = stack.overline("replay", task_id)
    assert told.returncode == 1
    assert "is not in this database" in " ".join(told.stdout.split())
    told = stack.overline("export", task_id, "-o", str(bundle))
    assert told.returncode == 1
    assert "is not whole" in " ".join(told.stderr.split())
    await caller.http.aclose()


async def _reads_by_codec(settings: Settings, caller: Caller, task_id: str, api: str) -> None:
    client = await Client.connect(settings.temporal_address)
    history = await client.get_workflow_handle(f"task-{task_id}").fetch_history()
    started = history.events[0].workflow_execution_started_event_attributes
    (reference,) = started.input.payloads
    assert claim_in(reference) is not None
    as_json = {
        "metadata": {
            name: base64.b64encode(value).decode() for name, value in reference.metadata.items()
        },
        "data": base64.b64encode(reference.data).decode(),
    }
    assert settings.codec_token is not None
    token = settings.codec_token.get_secret_value()
    body = {"payloads": [as_json]}
    decoded = await caller.http.post(f"{api}/codec/{token}/decode", json=body)
    assert decoded.json() == body
    fetched = await caller.http.post(f"{api}/codec/{token}/download", json=body)
    (payload,) = fetched.json()["payloads"]
    assert json.loads(base64.b64decode(payload["data"]))["task_id"] == task_id
    refused = await caller.http.post(f"{api}/codec/wrong/download", json=body)
    assert refused.status_code == 401
