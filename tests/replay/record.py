"""Records a history of every kind of task anew: `python -m tests.replay.record [kind ...]`.

Do this when a change to the workflows is meant to differ from what was recorded, and say in the
commit why no task that is running then can be hurt by it. Starts a stack of its own and ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import psycopg
from temporalio.client import Client

from tests.chaos.victims import kill, pids_of
from tests.integration.running import RunningStack
from tests.integration.tasks.caller import Caller, ask, choose, choose_all, say, words
from tests.integration.tasks.services import DOCUMENT, HttpService
from tests.replay.recorded import FOLDER, PAYLOAD_KEYS
from tests.replay.screened import screened, screened_blocked, screened_held, screened_judged
from tests.upstream import registered, served
from workflows.client import connect_kwargs

MODELS = "scripted,smollm2-135m-instruct,all-minilm-l6-v2"
MODEL = "scripted"
CALCULATE = choose({"tool": "calculator", "expression": "6*7"})
MUST_CALCULATE = [{"name": "calculator", "must_call": True}]

Record = Callable[["Recorder"], Awaitable[str]]


class Recorder:
    """A caller, and the stack it may break."""

    def __init__(self, stack: RunningStack, caller: Caller, service: HttpService) -> None:
        self.stack = stack
        self.caller = caller
        self.service = service

    async def ended(self, status: str, question: str, **fields: Any) -> str:
        """Run a task that must end in a given way; returns its workflow's id."""
        task_id = await self.caller.submit(question, **({"model": MODEL} | fields))
        task = await self.caller.ended(task_id)
        assert task["status"] == status, task
        return f"task-{task_id}"

    async def interrupted(self, status: str, act: Callable[[str], Awaitable[Any]]) -> str:
        """Run a task to the middle of its answer, do something to it, and wait for its end."""
        question = CALCULATE + say(words(80), pace_ms=10)
        task_id = await self.caller.submit(
            question, model=MODEL, tools=MUST_CALCULATE, sampling={"max_tokens": 2000}
        )
        async with self.caller.watch(task_id) as watcher:
            await watcher.until(lambda seen: len(seen.text(2)) > 100)
            await act(task_id)
            last = await watcher.to_end()
        assert last.type == f"task.{status}", last
        return f"task-{task_id}"

    async def collection(self) -> tuple[str, str]:
        """Ingest a document; returns its collection and its workflow's id."""
        name = f"c{uuid4().hex}"
        await self.caller.request("POST", "/v1/collections", json={"name": name})
        text = "\n\n".join(f"# Part {part}\n\n" + f"Words of part {part}. " * 40 for part in "abc")
        path = f"/v1/collections/{name}/documents"
        body = {"external_id": "d", "title": "d", "text": text}
        sent = (await self.caller.request("POST", path, json=body)).json()
        while (await self.caller.request("GET", f"{path}/{sent['id']}")).json()[
            "status"
        ] != "ready":
            await asyncio.sleep(0.1)
        return name, str(sent["workflow_id"])


async def _plain(recorder: Recorder) -> str:
    return await recorder.ended("succeeded", say("An answer."))


async def _tools(recorder: Recorder) -> str:
    name, _ = await recorder.collection()
    question = choose({"tool": "search", "query": "part b"}) + CALCULATE + say("Found, and 42.")
    tools = [{"name": "search", "must_call": True}, {"name": "calculator"}]
    return await recorder.ended("succeeded", question, tools=tools, collections=[name])


async def _passages(recorder: Recorder) -> str:
    name, _ = await recorder.collection()
    return await recorder.ended("succeeded", say("Read."), collections=[name], passages=2)


async def _cached(recorder: Recorder) -> str:
    question = f"{uuid4()} {CALCULATE}" + say("It is 42.")
    await recorder.ended("succeeded", question, tools=MUST_CALCULATE)
    return await recorder.ended("succeeded", question, tools=MUST_CALCULATE)


async def _uncached(recorder: Recorder) -> str:
    return await recorder.ended("succeeded", say("Warm."), sampling={"temperature": 0.5})


async def _denied(recorder: Recorder) -> str:
    """An upstream that does not take our key, and the model behind it that answers instead."""
    return await recorder.ended("succeeded", say("Caught."), model=None, route="after-401")


async def _cancelled(recorder: Recorder) -> str:
    return await recorder.interrupted("cancelled", recorder.caller.cancel)


async def _cancelled_waiting(recorder: Recorder) -> str:
    """Cancelled between two attempts: the server's own mark is in the history."""
    task_id = await recorder.caller.submit(say(words(20), fail=30), model=MODEL)
    async with recorder.caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text()) == 30)
        await recorder.caller.cancel(task_id)
        last = await watcher.to_end()
    assert last.type == "task.cancelled", last
    return f"task-{task_id}"


async def _resumed(recorder: Recorder) -> str:
    async def die(task_id: str) -> None:
        kill(await pids_of("worker", recorder.stack, task_id))

    return await recorder.interrupted("succeeded", die)


async def _spent_budget(recorder: Recorder) -> str:
    """Paused in the middle, because a budget above it was lowered; goes on when it is raised."""
    caller = recorder.caller
    budget = {"scope": "key", "subject": str(caller.key_id), "period": "month"}
    question = choose({"tool": "calculator", "expression": "6*7"}, pace_ms=25) + say("It is 42.")
    task_id = await caller.submit(question, model=MODEL, tools=MUST_CALCULATE, cache="off")
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: any(each.type == "step.started" for each in seen.events))
        await caller.request("POST", "/v1/budgets", json=budget | {"cap_usd": "0.000000001"})
        await watcher.until(lambda seen: any(each.type == "task.paused" for each in seen.events))
        await caller.request("POST", "/v1/budgets", json=budget | {"cap_usd": "100"})
        last = await watcher.to_end()
    assert last.type == "task.succeeded", last
    return f"task-{task_id}"


async def _step_limit(recorder: Recorder) -> str:
    return await recorder.ended(
        "failed", CALCULATE + say("never"), tools=MUST_CALCULATE, limits={"max_steps": 1}
    )


async def _budget(recorder: Recorder) -> str:
    # One tool choice may cost this much, so there is nothing left for a second call.
    worst = ((131_072 - 128) * 0.10 + 128 * 0.40) / 1_000_000
    return await recorder.ended(
        "failed",
        CALCULATE + say("never"),
        tools=MUST_CALCULATE,
        limits={"max_cost_usd": f"{worst:.9f}"},
        sampling={"max_tokens": 128},
    )


async def _refused(recorder: Recorder) -> str:
    return await recorder.ended("failed", say("x", unheard_of=1))


async def _in_turn(recorder: Recorder) -> str:
    """A call that waits in its engine's queue, behind whoever is not a batch."""
    return await recorder.ended("succeeded", say("In turn."), priority="batch")


async def _fallback(recorder: Recorder) -> str:
    candidates = json.dumps([{"model": MODEL}, {"model": "smollm2-135m-instruct"}])
    with psycopg.connect(recorder.stack.admin_url) as connection:
        connection.execute(
            "insert into routes (name, description, candidates) values ('two', '', %s)",
            (candidates,),
        )
    # As long as API and workers keep a catalogue they have read.
    await asyncio.sleep(6)
    return await recorder.ended(
        "succeeded", say(words(9), fail=10), model=None, route="two", sampling={"max_tokens": 16}
    )


async def _output(recorder: Recorder) -> str:
    """Two answers that do not obey, each shown to the model, and a third that does."""
    schema = {"type": "object", "properties": {"code": {"type": "string", "pattern": "^[A-Z]+$"}}}
    question = say("no") + say('{"code": "low"}') + say('{"code": "HIGH"}')
    return await recorder.ended("succeeded", question, output_schema=schema)


async def _output_invalid(recorder: Recorder) -> str:
    """Held to its schema after a tool call, and cut off every time."""
    question = CALCULATE + choose({"text": words(9)})
    return await recorder.ended(
        "failed",
        question,
        tools=MUST_CALCULATE,
        output_schema={"type": "object", "properties": {"text": {"type": "string"}}},
        sampling={"max_tokens": 8},
    )


async def _ingestion(recorder: Recorder) -> str:
    _, workflow_id = await recorder.collection()
    return workflow_id


async def _scheduled(recorder: Recorder) -> str:
    caller = recorder.caller
    task = {"input": say("As ever."), "model": MODEL}
    body = {"name": f"s{uuid4().hex}", "interval_seconds": 300 * 86_400, "task": task}
    path = (
        f"/v1/schedules/{(await caller.request('POST', '/v1/schedules', json=body)).json()['id']}"
    )
    await caller.request("POST", f"{path}/run")
    while not (runs := (await caller.request("GET", path)).json()["runs"]):
        await asyncio.sleep(0.1)
    await caller.ended(runs[0]["task_id"])
    schedule_id = path.rpartition("/")[2]
    # Temporal puts the time behind it, the day first.
    return f"scheduled-{caller.organisation_id}-{schedule_id}-{runs[0]['fire']}"


async def _approved(recorder: Recorder) -> str:
    """A call that waits for a person, who changes its arguments."""
    caller = recorder.caller
    tools = [{"name": "calculator", "must_call": True, "approval": "always"}]
    task_id = await caller.submit(CALCULATE + say("It is 4."), model=MODEL, tools=tools)
    path = f"/v1/tasks/{task_id}/approvals"
    while not (asked := (await caller.request("GET", path)).json()["approvals"]):
        await asyncio.sleep(0.05)
    decision = {"decision": "approve", "arguments": {"expression": "2+2"}}
    await caller.request("POST", f"{path}/{asked[0]['call_id']}", json=decision)
    assert (await caller.ended(task_id))["status"] == "succeeded"
    return f"task-{task_id}"


async def _paused(recorder: Recorder) -> str:
    """Paused after its first step, and let go on."""
    caller = recorder.caller
    question = CALCULATE + choose({"tool": "calculator", "expression": "1+1"}, pace_ms=20)
    tools = [{"name": "calculator", "max_calls": 2}]
    task_id = await caller.submit(question + say("Done."), model=MODEL, tools=tools)
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: any(e.step == 2 for e in seen.events))
        await caller.request("POST", f"/v1/tasks/{task_id}/pause")
        await watcher.until(lambda seen: seen.events[-1].type == "tool.completed")
        await asyncio.sleep(1)
        await caller.request("POST", f"/v1/tasks/{task_id}/resume")
        assert (await watcher.to_end()).type == "task.succeeded"
    return f"task-{task_id}"


async def _message(recorder: Recorder) -> str:
    """Told something after its first step, and again while it answers."""
    caller = recorder.caller
    question = choose({"tool": "calculator", "expression": "1+1"}, pace_ms=20)
    tools = [{"name": "calculator", "max_calls": 2}]
    task_id = await caller.submit(question, model=MODEL, cache="off", tools=tools)
    path = f"/v1/tasks/{task_id}/messages"
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: any(e.step == 1 for e in seen.events))
        first = {"content": "Take your time. " + say(words(60), pace_ms=10)}
        await caller.request("POST", path, json=first)
        await watcher.until(lambda seen: len(seen.text(seen.events[-1].step)) > 100)
        await caller.request("POST", path, json={"content": "And? " + say("Told.")})
        assert (await watcher.to_end()).type == "task.succeeded"
    return f"task-{task_id}"


async def _session(recorder: Recorder) -> str:
    """Two turns, the second of which fails, and closed."""
    caller = recorder.caller
    begun = await caller.request("POST", "/v1/sessions", json={"model": MODEL})
    path = f"/v1/sessions/{begun.json()['id']}"
    for content in (say("Hello."), say("x", unheard_of=1)):
        await caller.request("POST", f"{path}/messages", json={"content": content})
    await caller.request("DELETE", path)
    async with caller.http.sse(f"{path}/events") as source:
        kinds = [event.event async for event in source if event.data]
    assert [kind for kind in kinds if kind.startswith("task.")][-1] == "task.failed"
    return f"session-{begun.json()['id']}"


async def _parallel(recorder: Recorder) -> str:
    """Three calls at once, one of them once more; the worker dies when one of them is done."""
    caller, service = recorder.caller, recorder.service
    source = {"name": "svc", "kind": "openapi", "document": DOCUMENT, "base_url": service.url}
    await caller.request("POST", "/v1/tools", json=source)
    item = {"body": {"item": "tea", "count": 1}}
    order = {"tool": "svc.order", "arguments": item}
    calculate = [{"tool": "calculator", "expression": each} for each in ("6*7", "1+1")]
    service.hold.set()
    task_id = await caller.submit(
        choose_all(calculate[0], order, calculate[0], calculate[1])
        + choose({"tool": "answer"})
        + say("Ordered, and 42."),
        model=MODEL,
        tools=[
            {"name": "calculator", "approval": {"when": {"expression": "1*"}}},
            {"name": "svc.order"},
        ],
        parallel_tool_calls=4,
    )
    async with caller.watch(task_id) as watcher:
        await watcher.until(
            lambda seen: {"tool.completed", "approval.requested"} <= {e.type for e in seen.events}
        )
        while not service.orders:
            await asyncio.sleep(0.02)
        kill(await pids_of("worker", recorder.stack, task_id))
        path = f"/v1/tasks/{task_id}/approvals"
        (asked,) = (await caller.request("GET", path)).json()["approvals"]
        await caller.request("POST", f"{path}/{asked['call_id']}", json={"decision": "approve"})
        service.hold.clear()
        last = await watcher.to_end()
    assert last.type == "task.succeeded", last
    return f"task-{task_id}"


async def _webhook(recorder: Recorder) -> str:
    """Delivered at the second attempt."""
    caller, url = recorder.caller, f"{recorder.service.url}/flaky"
    task_id = await caller.submit(say("Told."), model=MODEL, webhook={"url": url})
    await caller.ended(task_id)
    while True:
        answer = await caller.request("GET", f"/v1/tasks/{task_id}/webhooks")
        (delivery,) = answer.json()["deliveries"]
        if delivery["state"] == "delivered":
            return f"webhook-{delivery['id']}"
        await asyncio.sleep(0.1)


async def _housekeeping(recorder: Recorder) -> str:
    recorder.stack.json("housekeeping")
    return "housekeeping-by-hand"


async def _sub_agents(recorder: Recorder) -> str:
    """Two sub-agents asked one after the other; the second one fails."""
    caller = recorder.caller
    question = ""
    for name, system in (("child", say("Inside.")), ("broken", say("x", unheard_of=1))):
        body = {"name": name, "model": MODEL, "system": system}
        await caller.request("POST", "/v1/agents", json=body)
        question += ask(name, "Speak.")
    tools = [{"name": f"agent.{name}", "must_call": True} for name in ("child", "broken")]
    return await recorder.ended("succeeded", question + say("Outside."), tools=tools)


async def _sub_agent_cancelled(recorder: Recorder) -> str:
    """Cancelled while its child speaks: the child ends first."""
    caller = recorder.caller
    body = {
        "name": "slow",
        "model": MODEL,
        "system": say(words(80), pace_ms=20),
        "sampling": {"max_tokens": 2000},
    }
    await caller.request("POST", "/v1/agents", json=body)
    tools = [{"name": "agent.slow", "must_call": True}]
    task_id = await caller.submit(ask("slow", "Speak.") + say("never"), model=MODEL, tools=tools)
    while not (below := (await caller.task(task_id))["children"]):
        await asyncio.sleep(0.05)
    async with caller.watch(below[0]["id"]) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 20)
        await caller.cancel(task_id)
        assert (await watcher.to_end()).type == "task.cancelled"
    assert (await caller.ended(task_id))["status"] == "cancelled"
    return f"task-{task_id}"


async def _map(recorder: Recorder) -> str:
    """Four inputs, two at a time, one of which fails."""
    caller = recorder.caller
    inputs = [say(f"answer {number}") for number in range(3)] + [say("x", unheard_of=1)]
    body = {"model": MODEL, "inputs": inputs, "concurrency": 2}
    map_id = (await caller.request("POST", "/v1/maps", json=body)).json()["id"]
    assert (await caller.ended(map_id))["progress"]["failed"] == 1
    return f"task-{map_id}"


async def _map_cancelled(recorder: Recorder) -> str:
    """Cancelled while two inputs are answered."""
    caller = recorder.caller
    inputs = [say(words(80), pace_ms=20)] * 3
    sampling = {"max_tokens": 2000}
    body = {"model": MODEL, "inputs": inputs, "concurrency": 2, "sampling": sampling}
    map_id = (await caller.request("POST", "/v1/maps", json=body)).json()["id"]
    while not (below := (await caller.task(map_id))["children"]):
        await asyncio.sleep(0.05)
    async with caller.watch(below[0]["id"]) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 20)
        await caller.cancel(map_id)
    assert (await caller.ended(map_id))["status"] == "cancelled"
    return f"task-{map_id}"


async def _call(recorder: Recorder) -> str:
    """A call of the fast lane whose process died in the middle: its workflow goes on."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": say(words(60), pace_ms=15)}],
        "stream": True,
    }
    http, task_id, seen = recorder.caller.http, "", 0
    with contextlib.suppress(httpx2.HTTPError):
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            task_id = answer.headers["x-overline-task"]
            async for _ in answer.aiter_lines():
                seen += 1
                if seen == 60:
                    recorder.stack.kill("api")
    task = await recorder.caller.ended(task_id)
    assert task["status"] == "succeeded", task
    return f"task-{task_id}"


async def _submitted(recorder: Recorder, questions: list[str]) -> str:
    """Submit a batch of chat completions; returns its path."""
    url = "/v1/chat/completions"
    data = "\n".join(
        json.dumps(
            {
                "custom_id": str(number),
                "method": "POST",
                "url": url,
                "body": {"model": MODEL, "messages": [{"role": "user", "content": question}]},
            }
        )
        for number, question in enumerate(questions)
    )
    form: Any = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", data.encode())}}
    file = (await recorder.caller.request("POST", "/v1/files", **form)).json()["id"]
    body = {"input_file_id": file, "endpoint": url, "completion_window": "1h"}
    made = await recorder.caller.request("POST", "/v1/batches", json=body)
    return f"/v1/batches/{made.json()['id']}"


async def _batch_ended(recorder: Recorder, path: str, status: str) -> str:
    while (batch := (await recorder.caller.request("GET", path)).json())["status"] != status:
        await asyncio.sleep(0.1)
    return f"batch-{UUID(hex=batch['id'].removeprefix('batch_'))}"


async def _batch(recorder: Recorder) -> str:
    """Four lines, one of which fails, and one at a time: the others wait for the limit."""
    caller = recorder.caller
    alone = {"scope": "key", "scope_id": str(caller.key_id), "concurrent_calls": 1}
    limit = (await caller.request("POST", "/v1/limits", json=alone)).json()["id"]
    slow = [say(words(20), pace_ms=20) for _ in range(3)]
    path = await _submitted(recorder, [*slow, say("x", unheard_of=1)])
    workflow_id = await _batch_ended(recorder, path, "completed")
    await caller.request("DELETE", f"/v1/limits/{limit}")
    return workflow_id


async def _batch_cancelled(recorder: Recorder) -> str:
    """Cancelled while lines are made."""
    path = await _submitted(recorder, [say(words(40), pace_ms=20) for _ in range(4)])
    while (await recorder.caller.request("GET", path)).json()["status"] != "in_progress":
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)
    await recorder.caller.request("POST", f"{path}/cancel")
    return await _batch_ended(recorder, path, "cancelled")


KINDS: dict[str, Record] = {
    "approved": _approved,
    "batch": _batch,
    "batch_cancelled": _batch_cancelled,
    "budget": _budget,
    "cached": _cached,
    "call": _call,
    "cancelled": _cancelled,
    "cancelled_waiting": _cancelled_waiting,
    "denied": _denied,
    "fallback": _fallback,
    "housekeeping": _housekeeping,
    "housekeeping_files": _housekeeping,
    "in_turn": _in_turn,
    "ingestion": _ingestion,
    "map": _map,
    "map_cancelled": _map_cancelled,
    "message": _message,
    "output": _output,
    "output_invalid": _output_invalid,
    "parallel": _parallel,
    "passages": _passages,
    "paused": _paused,
    "plain": _plain,
    "refused": _refused,
    "resumed": _resumed,
    "scheduled": _scheduled,
    "screened": screened,
    "screened_blocked": screened_blocked,
    "screened_held": screened_held,
    "screened_judged": screened_judged,
    "session": _session,
    "spent_budget": _spent_budget,
    "step_limit": _step_limit,
    "sub_agent_cancelled": _sub_agent_cancelled,
    "sub_agents": _sub_agents,
    "tools": _tools,
    "uncached": _uncached,
    "webhook": _webhook,
}


def without_hosts(value: Any, host: str) -> Any:
    """Return a history that does not tell on which machine it was recorded."""
    if isinstance(value, list):
        return [without_hosts(item, host) for item in value]
    if isinstance(value, dict):
        return {name: without_hosts(item, host) for name, item in value.items()}
    return value.replace(f"@{host}", "@recorded") if isinstance(value, str) else value


async def _save(client: Client, kind: str, workflow_id: str) -> None:
    handle = client.get_workflow_handle(workflow_id)
    # The caller hears of the end before the workflow's last event is written.
    while (await handle.describe()).close_time is None:
        await asyncio.sleep(0.05)
    history = await handle.fetch_history()
    events = without_hosts(json.loads(history.to_json()), socket.gethostname())
    told = {"workflow_id": workflow_id, "history": events}
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{kind}.json").write_text(json.dumps(told, indent=1) + "\n")
    sys.stdout.write(f"{kind:<12} {len(history.events):>4} events  {workflow_id}\n")


async def record(kinds: list[str]) -> None:
    """Record tasks of the given kinds."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        tempfile.TemporaryDirectory(prefix="overline-") as folder,
        HttpService(port) as service,
        served() as upstream,
    ):
        stack = RunningStack(
            Path(folder) / "stack",
            {
                "OVERLINE_MODELS": MODELS,
                "OVERLINE_PAYLOAD_KEYS": PAYLOAD_KEYS,
                "OVERLINE_EGRESS_ALLOW": f"127.0.0.1:{port}",
                **registered(Path(folder) / "operator", upstream.url),
            },
        )
        try:
            stack.up()
            caller = Caller.made(stack.admin_url, stack.state().urls["api"])
            settings = stack.settings.model_copy(
                update={"payload_keys": type(stack.settings.payload_keys)(PAYLOAD_KEYS)}
            )
            client = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
            recorder = Recorder(stack, caller, service)
            for kind in kinds:
                await _save(client, kind, await KINDS[kind](recorder))
            await caller.http.aclose()
        finally:
            stack.overline("down")


def main() -> None:
    """Record what the arguments name, or everything."""
    kinds = sys.argv[1:] or list(KINDS)
    if unknown := set(kinds) - set(KINDS):
        sys.exit(f"no such kind: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    asyncio.run(record(kinds))


if __name__ == "__main__":
    main()
