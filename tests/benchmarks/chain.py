"""`make bench BENCH=chain`: what the whole chain adds to a bare workflow of as many activities.

Scripted engine at zero delay behind the real Triton; Temporal, Postgres and one worker process
each for the chain and for the bare workflow, on one machine, in one run, taking turns.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from temporalio.client import Client
from uuid_utils.compat import uuid7

from inference.client import TritonClient
from inference.messages import GenerationRequest
from inference.prompt import Sampling
from inference.tokenizers import load_tokenizer
from settings import load_settings
from store import tasks
from store.database import Database
from store.events import EventHub, read_events
from store.identity import Principal, authenticate
from tests.benchmarks.bare_worker import QUEUE
from tests.benchmarks.stack import own_stack
from workflows import transcript
from workflows.client import connect_kwargs
from workflows.contracts import Plan, TaskInput, TaskRequest, Tenant
from workflows.contracts import Sampling as PlanSampling

ACTIVITIES = 6
WARM_UP = 15
SINGLE_RUNS = 60
CONCURRENT_SECONDS = 8.0
CONCURRENCY = (1, 8, 32)
SAY = '[[say text="The answer is forty-two." pace_ms=0]]'


class Chain:
    """Submits one-call tasks the way the API does, without HTTP."""

    def __init__(self, db: Database, client: Client, principal: Principal, queue: str) -> None:
        self._db, self._client, self._principal, self._queue = db, client, principal, queue

    async def start(self, text: str) -> tuple[UUID, Any]:
        """File a task and start its workflow."""
        task_id = uuid7()
        request = TaskRequest(input=text, model="scripted", cache="auto")
        submitted = await tasks.submit_task(
            self._db,
            self._principal,
            task_id=task_id,
            idempotency_key=None,
            request_digest=str(task_id),
            input=request.model_dump(mode="json"),
            user=None,
            tags={},
            route="default",
            worst_case_usd=__import__("decimal").Decimal(0),
            max_cost_usd=None,
        )
        assert isinstance(submitted, tasks.Submitted), submitted
        digest, chars = transcript.start(None, request.conversation())
        handle = await self._client.start_workflow(
            "AgentTask",
            TaskInput(
                task_id=task_id,
                tenant=Tenant(
                    organisation_id=self._principal.organisation_id,
                    team_id=self._principal.team_id,
                    key_id=self._principal.key_id,
                ),
                plan=Plan(model="scripted", sampling=PlanSampling()),
                prompt_digest=digest,
                prompt_chars=chars,
            ),
            id=f"task-{task_id}",
            task_queue=self._queue,
        )
        return task_id, handle

    async def run(self) -> None:
        """Run one task whose answer no cache has."""
        _, handle = await self.start(f"{uuid7()} {SAY}")
        await handle.result()


async def timed(run: Callable[[], Awaitable[None]]) -> float:
    """Return the milliseconds a run takes."""
    began = time.perf_counter()
    await run()
    return (time.perf_counter() - began) * 1000


async def per_second(run: Callable[[], Awaitable[None]], concurrency: int) -> float:
    """Return completed runs a second at a fixed concurrency."""
    done = 0
    until = time.perf_counter() + CONCURRENT_SECONDS

    async def loop() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await run()
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(loop() for _ in range(concurrency)))
    return done / (time.perf_counter() - began)


async def first_tokens(
    chain: Chain, db: Database, hub: EventHub, raw: TritonClient, principal: Principal
) -> tuple[list[float], list[float]]:
    """Return milliseconds to the first token: over a raw stream, and at a reader of the events."""
    settings = load_settings()
    tokenizer = await asyncio.to_thread(load_tokenizer, settings.models_folder / "scripted")
    raw_ms: list[float] = []
    chain_ms: list[float] = []
    for _ in range(SINGLE_RUNS):
        text = f"{uuid7()} {SAY}"
        request = GenerationRequest(
            triton_model="scripted",
            request_id=str(uuid7()),
            input_ids=tokenizer.encode(text, special=False),
            sampling=Sampling(max_tokens=64),
        )
        began = time.perf_counter()
        stream = raw.generate(request)
        async for chunk in stream:
            if chunk.token_ids:
                break
        raw_ms.append((time.perf_counter() - began) * 1000)
        await stream.aclose()
        began = time.perf_counter()
        task_id, handle = await chain.start(text)
        async with hub.subscribe(task_id) as wake:
            after = 0
            while True:
                events = await read_events(db, principal.organisation_id, task_id, after, 100)
                if any(event.type == "text" for event in events):
                    break
                after = max([after, *(event.seq for event in events)])
                await wake.wait(5)
        chain_ms.append((time.perf_counter() - began) * 1000)
        await handle.result()
    return raw_ms, chain_ms


def round_trips(metrics_port: int) -> float:
    """Read the worker's count of round trips to Postgres."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("overline_database_round_trips_total "):
                return float(line.split()[1])
    raise RuntimeError("the worker does not count its round trips")


async def measure(metrics_port: int) -> dict[str, Any]:
    """Run the whole benchmark against the stack of `load_settings`."""
    settings = load_settings()
    assert settings.api_key is not None
    db = await Database.open(settings.database_url.get_secret_value())
    principal = await authenticate(db, settings.api_key.get_secret_value())
    assert isinstance(principal, Principal)
    ours = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
    plain = await Client.connect(settings.temporal_address)
    chain = Chain(db, ours, principal, settings.task_queue)

    async def bare() -> None:
        await plain.execute_workflow("Bare", ACTIVITIES, id=f"bare-{uuid7()}", task_queue=QUEUE)

    for _ in range(WARM_UP):
        await bare()
        await chain.run()
    bare_ms: list[float] = []
    chain_ms: list[float] = []
    for _ in range(SINGLE_RUNS):
        bare_ms.append(await timed(bare))
        chain_ms.append(await timed(chain.run))

    before = round_trips(metrics_port)
    task_id, handle = await chain.start(f"{uuid7()} {SAY}")
    await handle.result()
    trips = round_trips(metrics_port) - before
    history = await ours.get_workflow_handle(f"task-{task_id}").fetch_history()
    size = sum(event.ByteSize() for event in history.events)

    hub = EventHub(settings.database_url.get_secret_value())
    raw = TritonClient(settings.triton_urls[0])
    raw_first, chain_first = await first_tokens(chain, db, hub, raw, principal)

    rates = {}
    bare_rates = {}
    for concurrency in CONCURRENCY:
        bare_rates[str(concurrency)] = round(await per_second(bare, concurrency), 1)
        rates[str(concurrency)] = round(await per_second(chain.run, concurrency), 1)
    await raw.close()
    await db.close()
    added = sorted(ours - theirs for ours, theirs in zip(chain_ms, bare_ms, strict=True))
    return {
        "engine": "scripted, zero delay",
        "activities": ACTIVITIES,
        "runs": SINGLE_RUNS,
        "bare_ms": quantiles(bare_ms),
        "chain_ms": quantiles(chain_ms),
        "chain_over_bare": round(statistics.median(chain_ms) / statistics.median(bare_ms), 3),
        "added_ms": quantiles(added),
        "raw_first_token_ms": quantiles(raw_first),
        "chain_first_token_ms": quantiles(chain_first),
        "first_token_overhead_ms": round(
            statistics.median(chain_first) - statistics.median(raw_first), 1
        ),
        "calls_per_s": rates,
        "bare_per_s": bare_rates,
        "events_per_call": len(history.events),
        "history_bytes_per_call": size,
        "round_trips_per_call": trips,
    }


def quantiles(values: list[float]) -> dict[str, float]:
    """Return the median and the 95th percentile."""
    ordered = sorted(values)
    return {
        "p50": round(statistics.median(ordered), 1),
        "p95": round(ordered[int(len(ordered) * 0.95)], 1),
    }


def main() -> None:
    """Start the stack and the bare worker, measure, print one JSON object."""
    from deploy.local.ports import free_port

    metrics_port = free_port()
    with own_stack(
        OVERLINE_MODELS="scripted",
        OVERLINE_WORKERS="1",
        OVERLINE_METRICS_PORT=str(metrics_port),
        OVERLINE_LOG_LEVEL="WARNING",
    ):
        address = load_settings().temporal_address
        worker = subprocess.Popen([sys.executable, "-m", "tests.benchmarks.bare_worker", address])
        try:
            print(json.dumps(asyncio.run(measure(metrics_port)), indent=2))
        finally:
            worker.terminate()
            worker.wait(timeout=10)


if __name__ == "__main__":
    main()
