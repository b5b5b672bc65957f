"""What breaks behind Triton ends the caller's stream, soon and typed; counts survive it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest

from inference.client import TritonClient
from inference.errors import EngineFailed, EngineUnavailable
from inference.messages import GenerationRequest
from inference.prompt import Sampling
from tests.integration.engine.running import RunningEngine, Told, collect, tell

Make = Callable[..., RunningEngine]
SCRIPTED = "scripted"


def request(words: str, request_id: str, **given: object) -> GenerationRequest:
    given.setdefault("idle_s", 1.0)
    return GenerationRequest(
        SCRIPTED,
        request_id=request_id,
        input_ids=list(words.encode()),
        sampling=Sampling(max_tokens=500),
        **given,  # type: ignore[arg-type]
    )


async def fails(client: TritonClient, asked: GenerationRequest) -> tuple[Told, EngineUnavailable]:
    told = Told()
    started = time.perf_counter()
    with pytest.raises(EngineUnavailable) as failure:
        await collect(client, asked, told)
    assert time.perf_counter() - started < 8
    assert told.final is None
    return told, failure.value


async def test_a_model_process_that_dies(own_engine: Make) -> None:
    """Its stream ends soon, the engine is known to be ill though Triton says it is ready, and
    after a restart the meter knows every token and the rest can be had.
    """
    engine = own_engine()
    await engine.start()
    words = '[[say text="abcdefghij" pace_ms=5 die=6 once="x"]]'
    async with TritonClient(engine.url) as client:
        # Long before the idle timer would, since a silent model is asked for a sign of life.
        told, failure = await fails(client, request(words, "call#0@1", idle_s=60))
        assert failure.code == "unhealthy"
        assert told.text == "abcdef"
        _, failure = await fails(client, request("hello", "other@1"))
        assert failure.retryable
        assert await client.server_ready()
        assert await engine.part.problem() is not None
    engine.stop(patience_s=0.5)
    await engine.start()
    async with TritonClient(engine.url) as client:
        reading = await client.meter(SCRIPTED, "call#0@1")
        assert reading is not None
        assert (reading.state, reading.completion_tokens) == ("lost", 6)
        rest = Told()
        await collect(client, request(words, "call#0@2", generated_ids=told.token_ids), rest)
        assert told.text + rest.text == "abcdefghij"
        assert rest.end.completion_tokens == 5


async def test_a_long_silence_of_a_healthy_model_is_waited_out(client: TritonClient) -> None:
    told = Told()
    await collect(client, request('[[say text="ok" first_ms=4500]]', "slow@1", idle_s=60), told)
    assert told.text == "ok"


async def test_a_generation_that_freezes_or_never_ends(client: TritonClient) -> None:
    told, failure = await fails(client, request('[[say text="abcdef" freeze=3]]', "frozen@1"))
    assert (told.text, failure.code) == ("abc", "idle_timeout")
    told, failure = await fails(client, request('[[say text="abc" hang_end=true]]', "open@1"))
    assert (told.text, failure.code) == ("abc", "idle_timeout")
    # The one that was given up is cancelled in the engine, too.
    for _ in range(100):
        reading = await client.meter(SCRIPTED, "frozen@1")
        assert reading is not None
        if reading.state == "cancelled":
            break
        await asyncio.sleep(0.05)
    assert reading.state == "cancelled"


async def test_an_engine_that_breaks_on_one_request(client: TritonClient) -> None:
    with pytest.raises(EngineFailed):
        await tell(client, SCRIPTED, list(b'[[say text="abcdef" fail=3]]'), request_id="broke@1")
    reading = await client.meter(SCRIPTED, "broke@1")
    assert reading is not None
    assert (reading.state, reading.completion_tokens) == ("failed", 3)
    assert (await tell(client, SCRIPTED, list(b"hello"))).text == "OK."


async def test_a_deadline(client: TritonClient) -> None:
    asked = request('[[say text="abc" pace_ms=300]]', "late@1", deadline_s=0.5)
    _, failure = await fails(client, asked)
    assert failure.code == "deadline"


async def test_a_frozen_model_process_and_a_killed_server(own_engine: Make) -> None:
    engine = own_engine()
    await engine.start()
    async with TritonClient(engine.url) as client:
        told, failure = await fails(
            client, request('[[say text="abcdef" freeze_process=3]]', "stopped@1")
        )
        assert (told.text, failure.code) == ("abc", "idle_timeout")
        with pytest.raises(EngineUnavailable):
            await client.ping(SCRIPTED, 0.5)
    # Triton gives up on a model process that was frozen, for good.
    engine.stop(patience_s=0.5)
    await engine.start()
    async with TritonClient(engine.url) as client:
        models = engine.model_processes()
        running = asyncio.create_task(
            fails(client, request('[[say text="ab" tokens=400 pace_ms=20]]', "killed@1"))
        )
        await asyncio.sleep(0.5)
        os.kill(engine.pid, signal.SIGKILL)
        told, failure = await running
        assert told.token_ids
        assert failure.code == "connection_lost"
        assert not await client.server_ready(1.0)
        # Nobody else ends the models of a Triton that was killed.
        deadline = time.monotonic() + 5
        while set(engine.model_processes()) & set(models):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
    # Nor would anybody else remove its shared memory; its successor does.
    left = set(engine.shared_memory())
    assert left
    engine.stop(patience_s=0.5)
    await engine.start()
    assert not left & set(engine.shared_memory())
