"""Why a task is not moving: the reason, what to do, and nothing of what the task says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from typer.testing import CliRunner

from api import cli
from api.app import create_app
from api.why_known import CODES
from api.worker_life import silent_workers
from deploy.local.ports import free_port
from settings import load_settings
from tests.integration.running import OVERLINE, RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, choose, say, words
from workflows.client import connect_kwargs
from workflows.contracts import TaskInput

MODEL = "scripted"
SECRET = "marzipan"
SLOW = {"model": MODEL, "cache": "off", "sampling": {"max_tokens": 2000}}


async def _why(caller: Caller, task_id: str) -> dict[str, Any]:
    answer = await caller.request("GET", f"/v1/tasks/{task_id}/why")
    read: dict[str, Any] = answer.json()
    # Whatever the reason: known, in words, with advice, and nothing of what was asked or said.
    for reason in read["reasons"]:
        assert reason["code"] in CODES
        assert reason["text"]
        assert reason["advice"]
    assert SECRET not in answer.text
    return read


async def _until(caller: Caller, task_id: str, code: str, *, limit_s: float = 30) -> dict[str, Any]:
    """Ask until the first reason has that code."""
    deadline = time.monotonic() + limit_s
    while (read := await _why(caller, task_id))["reasons"][0]["code"] != code:
        assert time.monotonic() < deadline, read
        await asyncio.sleep(0.1)
    first: dict[str, Any] = read["reasons"][0]
    return first


async def test_a_task_that_moves_says_where_and_one_that_ended_how(caller: Caller) -> None:
    task_id = await caller.submit(
        f"{SECRET} " + say(words(120), pace_ms=10), **SLOW, limits={"deadline_seconds": 50}
    )
    async with caller.watch(task_id) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 40)
        read = await _why(caller, task_id)
        assert (read["status"], read["moving"]) == ("running", True)
        moving, deadline = read["reasons"]
        assert moving["facts"]["step"] == 1
        assert moving["facts"]["tokens"] >= 40
        assert moving["facts"]["doing"] == "generation.generate"
        assert deadline["code"] == "deadline"
        assert 0 < deadline["facts"]["left_s"] <= 50
        await watcher.to_end()
    read = await _why(caller, task_id)
    assert (read["status"], read["moving"]) == ("succeeded", False)
    assert [reason["code"] for reason in read["reasons"]] == ["ended"]


async def test_a_paused_task_whose_next_call_no_budget_covers_says_so_with_the_numbers(
    caller: Caller, books: Books
) -> None:
    question = choose({"tool": "calculator", "expression": "1+1"}, pace_ms=20) + say(SECRET)
    tools = [{"name": "calculator", "must_call": True}]
    task_id = await caller.submit(question, **SLOW, tools=tools)
    await caller.request("POST", f"/v1/tasks/{task_id}/pause")
    deadline = time.monotonic() + 30
    while not (steps := await caller.steps(task_id)) or steps[0]["tool_result"] is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    (spent,) = books.rows(
        "update budgets set cap_usd = held_usd + spent_usd where scope_id = %s"
        " returning spent_usd, held_usd",
        caller.key_id,
    )
    assert spent["held_usd"] == 0 < spent["spent_usd"]
    paused, budget = (await _why(caller, task_id))["reasons"]
    assert (paused["code"], paused["facts"]) == ("paused", {"step": 1})
    assert budget["code"] == "budget_held"
    assert budget["facts"]["scope"] == "key"
    assert budget["facts"]["limit_usd"] == budget["facts"]["spent_usd"] == f"{spent['spent_usd']}"
    # Let go on, it pauses by itself, and the budget is the reason.
    await caller.request("POST", f"/v1/tasks/{task_id}/resume")
    spent_first = await _until(caller, task_id, "budget_exhausted")
    assert spent_first["facts"]["scope"] == "key"
    await caller.cancel(task_id)
    assert (await caller.ended(task_id))["status"] == "cancelled"


async def test_a_task_that_failed_says_with_what(caller: Caller) -> None:
    task_id = await caller.submit(f"{SECRET} " + say(SECRET, unheard_of=1), model=MODEL)
    await caller.ended(task_id)
    (reason,) = (await _why(caller, task_id))["reasons"]
    assert reason["facts"] == {
        "error": "OVL-1007",
        "step": 1,
        "layer": "generation.generate",
    }


async def test_an_activity_that_is_tried_again_says_what_failed_and_when_it_is_next(
    caller: Caller,
) -> None:
    task_id = await caller.submit(f"{SECRET} " + say(words(20), fail=30), model=MODEL)
    reason = await _until(caller, task_id, "activity_retrying")
    assert reason["facts"]["activity"] == "generation.generate"
    assert reason["facts"]["failure"] == "EngineDown"
    assert reason["facts"]["attempt"] >= 2
    assert 0 <= reason["facts"]["next_try_s"] <= 5
    await caller.cancel(task_id)
    await caller.ended(task_id)


async def test_a_call_that_waits_for_a_person_is_named_and_can_be_answered_in_a_fork(
    caller: Caller,
) -> None:
    question = choose({"tool": "calculator", "expression": "1+1"}) + say("Done.")
    tools = [{"name": "calculator", "must_call": True, "approval": "always"}]
    task_id = await caller.submit(question, model=MODEL, tools=tools, cache="off")
    reason = await _until(caller, task_id, "waiting_for_person")
    assert reason["facts"] == {"step": 1, "tool": "calculator"}
    fork = {"from_step": 2, "tool_result": "1+1 = 2, said a person"}
    answer = await caller.request("POST", f"/v1/tasks/{task_id}/fork", json=fork)
    assert (await caller.ended(answer.json()["id"]))["answer"] == "Done."
    await caller.cancel(task_id)
    await caller.ended(task_id)


@asynccontextmanager
async def _other_api(
    caller: Caller, stack: RunningStack, **changes: Any
) -> AsyncIterator[httpx2.AsyncClient]:
    """An API process of the test's own in front of the same parts, or of others."""
    app = create_app(stack.settings.model_copy(update=changes))
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app),
            base_url="http://other",
            headers={"Authorization": f"Bearer {caller.token}"},
        ) as client,
    ):
        yield client


class Defect(RuntimeError):
    """What no workflow should raise."""


@workflow.defn(name="AgentTask", sandboxed=False)
class BrokenTask:
    """A workflow whose code fails each time."""

    @workflow.run
    async def run(self, task: TaskInput) -> None:
        """Fail as a defect would."""
        raise Defect(SECRET)


async def test_no_worker_and_then_one_whose_code_fails(caller: Caller, stack: RunningStack) -> None:
    queue = f"nobody-{uuid4()}"
    async with _other_api(caller, stack, task_queue=queue) as other:
        deadline = time.monotonic() + 20
        while (await other.get("/readyz")).status_code != 200:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        body = {"input": f"{SECRET} " + say("never"), "model": MODEL}
        accepted = await other.post("/v1/tasks", json=body)
        assert accepted.status_code == 202, accepted.text
        task_id = accepted.json()["id"]
    reason = await _until(caller, task_id, "no_worker")
    assert reason["facts"]["queue"] == queue
    assert reason["facts"]["kind"] == "workflow"
    assert "last_poll_s" not in reason["facts"]
    client = await Client.connect(stack.settings.temporal_address, **connect_kwargs(stack.settings))
    async with Worker(
        client,
        task_queue=queue,
        workflows=[BrokenTask],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        reason = await _until(caller, task_id, "workflow_task_failing")
        assert reason["facts"]["attempt"] >= 2
    await client.get_workflow_handle(f"task-{task_id}").terminate()
    # Until the API's own look finds it, and says so on the row.
    assert (await _until(caller, task_id, "ended_outside"))["facts"] == {"workflow": "terminated"}


async def test_a_worker_that_died_in_its_poll_is_not_taken_for_a_busy_one(
    stack: RunningStack,
) -> None:
    """Its last poll may be of a moment ago, and stand for a minute; that it is silent shows."""
    client = await Client.connect(stack.settings.temporal_address)
    worker = stack.pid("worker-1")

    async def silent() -> bool:
        names = await silent_workers(client, limit=timedelta(seconds=5))
        return any(name.partition("@")[0] == str(worker) for name in names)

    async with asyncio.timeout(90):
        assert not await silent()
        # Halted, and not killed: nobody starts another one in its place.
        os.kill(worker, signal.SIGSTOP)
        try:
            while not await silent():
                await asyncio.sleep(0.5)
        finally:
            os.kill(worker, signal.SIGCONT)
        while await silent():
            await asyncio.sleep(0.5)


async def test_accepted_and_not_started(caller: Caller, books: Books) -> None:
    task_id = str(uuid4())
    books.rows(
        "insert into tasks (organisation_id, task_id, team_id, key_id, workflow_id,"
        " request_digest, route, input, worst_case_usd) select organisation_id, %s, team_id,"
        " key_id, 'w', 'd', 'default', '{\"input\": \"marzipan\"}', 0 from api_keys"
        " where key_id = %s returning 1",
        task_id,
        caller.key_id,
    )
    read = await _why(caller, task_id)
    assert (read["status"], read["reasons"][0]["code"]) == ("accepted", "not_started")
    await caller.cancel(task_id)
    assert (await _why(caller, task_id))["reasons"][0]["code"] == "ended"


async def test_temporal_down_is_told_by_what_is_up(caller: Caller, stack: RunningStack) -> None:
    task_id = await caller.submit(f"{SECRET} " + say(words(100), pace_ms=10), **SLOW)
    away = f"127.0.0.1:{free_port()}"
    async with _other_api(caller, stack, temporal_address=away) as other:
        read = (await other.get(f"/v1/tasks/{task_id}/why", timeout=20)).json()
        assert read["reasons"][0]["code"] == "orchestrator_down"
    assert (await caller.ended(task_id))["status"] == "succeeded"


def _answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/healthz", timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


def _overline(env: dict[str, str], *words: str) -> tuple[int, str]:
    """Run a command of the command line in this process: another one costs seconds."""
    load_settings.cache_clear()
    try:
        done = CliRunner().invoke(cli._app, list(words), env={"OVERLINE_API_URL": None, **env})
    finally:
        load_settings.cache_clear()
    return done.exit_code, done.stdout


@pytest.mark.timeout(300)
def test_the_command_line_steers_and_answers_also_when_the_api_or_its_database_is_down(
    stack: RunningStack,
) -> None:
    env = {"OVERLINE_HOME": str(stack.folder)}

    def told(*words: str) -> Any:
        status, out = _overline(env, *words, "--json")
        assert status == 0, out
        return json.loads(out)

    done = told("submit", say("hello"), "--model", MODEL, "--no-tools")
    forked = told("fork", done["id"], "--from-step", "1", "--system", "Be brief.")
    assert (forked["status"], forked["parent"]["id"]) == ("succeeded", done["id"])
    assert told("diff", done["id"], forked["id"])["same_answer"]
    status, shown = _overline(env, "diff", done["id"], forked["id"])
    assert (status, "hello" in shown, "inherited" in shown) == (0, True, True)
    assert [each["code"] for each in told("why", done["id"])["reasons"]] == ["ended"]
    assert "succeeded" in _overline(env, "why", done["id"])[1]
    assert _overline(env, "pause", done["id"])[0] == 1
    slow = told("submit", say("x" * 60, pace_ms=20), "--model", MODEL, "--no-cache", "--detach")
    assert told("pause", slow["id"])["status"] == "paused"
    assert told("resume", slow["id"])["paused_at"] is None

    port = free_port()
    env["OVERLINE_API_URL"] = f"http://127.0.0.1:{port}"
    status, out = _overline(env, "why", done["id"], "--json")
    assert (status, json.loads(out)["reasons"][0]["code"]) == (3, "api_down")
    gone = f"postgresql://x:y@127.0.0.1:{free_port()}/overline"
    serving = subprocess.Popen(
        [OVERLINE, "serve"],
        env={**stack.env, "OVERLINE_API_PORT": str(port), "OVERLINE_DATABASE_URL": gone},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not _answers(env["OVERLINE_API_URL"]):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        status, out = _overline(env, "why", done["id"], "--json")
        assert (status, json.loads(out)["reasons"][0]["code"]) == (3, "database_down")
    finally:
        serving.terminate()
        serving.wait(20)
