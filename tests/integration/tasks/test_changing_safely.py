"""What operators do around a change: replay everything, look inside, take a task along."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.integration.running import OVERLINE, RunningStack
from tests.integration.tasks.caller import Caller, choose, say, words
from tests.replay.changed import WithALayerMore
from workflows.client import connect_kwargs
from workflows.contracts import TaskRequest, Tenant
from workflows.planning import plan_task

SECRET = "albatross"


async def _with_a_tool(caller: Caller) -> str:
    question = choose({"tool": "calculator", "expression": "17*3"}) + say(f"{SECRET} 51")
    tools = [{"name": "calculator", "must_call": True}]
    task = await caller.answered(
        question, model="scripted", tools=tools, tags={"who": SECRET}, user=SECRET
    )
    return str(task["id"])


async def test_all_that_runs_and_ended_lately_is_replayed(
    caller: Caller, stack: RunningStack
) -> None:
    ended = await _with_a_tool(caller)
    running = await caller.submit(
        say(words(400), pace_ms=40), model="scripted", sampling={"max_tokens": 4000}
    )
    try:
        async with caller.watch(running) as watcher:
            await watcher.until(lambda seen: len(seen.text()) > 20)
            told = stack.json("replay", "--all", "--since", "3m")
    finally:
        await caller.cancel(running)
    assert told["breaks"] == []
    assert told["workflows"] == told["replays"] + told["gone"] >= 2
    spoken = stack.overline("replay", "--all", "--since", "3m")
    assert spoken.returncode == 0, spoken.stdout + spoken.stderr
    assert "0 break" in spoken.stdout
    assert ended


@activity.defn(name="policy.check")
async def _check() -> None:
    await asyncio.sleep(0)


async def test_every_break_is_told_with_workflow_event_and_reason(
    caller: Caller, stack: RunningStack
) -> None:
    """A workflow that ran on other code than today's: as if that code had been changed since."""
    client = await Client.connect(stack.settings.temporal_address, **connect_kwargs(stack.settings))
    task = plan_task(
        uuid4(),
        Tenant(organisation_id=caller.organisation_id, team_id=uuid4(), key_id=caller.key_id),
        TaskRequest(input="x"),
    )
    queue = f"other-code-{uuid4()}"
    async with Worker(
        client,
        task_queue=queue,
        workflows=[WithALayerMore],
        activities=[_check],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        handle = await client.start_workflow(
            "AgentTask", task, id=f"task-{task.task_id}", task_queue=queue
        )
        # Until it asks for the next layer, for which nobody is there.
        while not (await handle.describe()).raw_description.pending_activities or not any(
            pending.activity_type.name != "policy.check"
            for pending in (await handle.describe()).raw_description.pending_activities
        ):
            await asyncio.sleep(0.05)
        try:
            done = stack.overline("replay", "--all", "--since", "3m", "--json")
            assert done.returncode == 1, done.stdout + done.stderr
            (found,) = json.loads(done.stdout)["breaks"]
            assert found["workflow_id"] == handle.id
            assert (found["workflow_type"], found["running"]) == ("AgentTask", True)
            assert "policy.check" in found["reason"]
            assert "TMPRL1100" in found["reason"]
            history = await handle.fetch_history()
            event = history.events[found["event"] - 1]
            name = event.activity_task_scheduled_event_attributes.activity_type.name
            assert name == "policy.check"
            spoken = stack.overline("replay", "--all", "--since", "3m")
            assert spoken.returncode == 1
            assert f"breaks {handle.id} (AgentTask, running) at event 5: " in spoken.stdout
        finally:
            await handle.terminate("the test is over")
            # Other tests replay whatever is closed: this one never can.
            await _forget(client, handle.id)


async def _forget(client: Client, workflow_id: str) -> None:
    await client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
        )
    )
    while [run async for run in client.list_workflows(f'WorkflowId = "{workflow_id}"')]:
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    "options",
    [(), ("x", "--all"), ("--all", "--since", "yesterday"), ("--all", "--break")],
)
def test_what_replay_cannot_make_sense_of(stack: RunningStack, options: tuple[str, ...]) -> None:
    done = stack.overline("replay", *options)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


async def test_break_stops_in_the_frame_of_the_workflow(
    caller: Caller, stack: RunningStack
) -> None:
    task_id = await _with_a_tool(caller)
    with _Terminal(stack, "replay", task_id, "--break") as terminal:
        seen = terminal.until("(Pdb)")
        assert "agent_task.py" in seen
        assert "run()" in seen
        terminal.say("p task.task_id")
        assert task_id in terminal.until("(Pdb)")
        terminal.say("p self._loop.step")
        terminal.until("(Pdb)")
        terminal.say("n")
        terminal.until("(Pdb)")
        terminal.say("q")
        terminal.until("replays")
        assert terminal.status() == 0


class _Terminal:
    """A command on a terminal of its own."""

    def __init__(self, stack: RunningStack, *words: str) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [OVERLINE, *words],
            env={**stack.env, "TERM": "dumb"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            close_fds=True,
        )
        os.close(slave)

    def __enter__(self) -> _Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._master)

    def say(self, line: str) -> None:
        os.write(self._master, f"{line}\n".encode())

    def until(self, mark: str, *, limit_s: float = 40) -> str:
        seen = b""
        deadline = time.monotonic() + limit_s
        while mark.encode() not in seen:
            assert time.monotonic() < deadline, seen.decode()
            ready, _, _ = select.select([self._master], [], [], 0.5)
            if ready:
                try:
                    seen += os.read(self._master, 65536)
                except OSError:
                    break
        assert mark.encode() in seen, seen.decode()
        return seen.decode()

    def status(self) -> int:
        return self._process.wait(30)


def _elsewhere(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as on another machine: no state folder, no key, no Temporal."""
    env = {name: value for name, value in os.environ.items() if "OVERLINE_" not in name}
    env["OVERLINE_HOME"] = str(tmp_path / "no-such-folder")
    env["OVERLINE_TEMPORAL_ADDRESS"] = "127.0.0.1:9"
    return subprocess.run(
        [OVERLINE, *words], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("redact", [False, True], ids=["clear", "redacted"])
async def test_a_task_travels_in_a_file(
    caller: Caller, stack: RunningStack, tmp_path: Path, redact: bool
) -> None:
    task_id = await _with_a_tool(caller)
    await _closed(stack, task_id)
    bundle = tmp_path / "bundle.zip"
    options = ("--redact",) if redact else ()
    told = stack.json("export", task_id, "-o", str(bundle), *options)
    assert (told["task_id"], told["redacted"]) == (task_id, redact)
    assert {"task.json", "steps.json", "calls.json", "tools.json", "events.json"} < set(
        told["members"]
    )
    done = _elsewhere(tmp_path, "replay", "bundle.zip", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["replays"] is True
    rows = _unpacked(bundle, tmp_path / "out")
    text = json.dumps(rows)
    assert (SECRET in text, "17*3" in text) == (not redact, not redact)
    assert len(rows["steps"]) == len(rows["calls"]) == 2
    assert [step["model"] for step in rows["steps"]] == ["scripted", "scripted"]
    assert [tool["name"] for tool in rows["tools"]] == ["calculator"]
    assert sum(call["billed_usd"] for call in rows["calls"]) == rows["task"]["billed_usd"] > 0
    assert [event["seq"] for event in rows["events"]] == list(range(1, len(rows["events"]) + 1))
    assert rows["events"][-1]["type"] == "task.succeeded"


def _unpacked(bundle: Path, folder: Path) -> dict[str, Any]:
    shutil.unpack_archive(bundle, folder)
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


async def _closed(stack: RunningStack, task_id: str) -> None:
    client = await Client.connect(stack.settings.temporal_address, **connect_kwargs(stack.settings))
    handle = client.get_workflow_handle(f"task-{task_id}")
    while (await handle.describe()).close_time is None:
        await asyncio.sleep(0.05)


def test_what_cannot_be_exported_or_read_is_said(stack: RunningStack, tmp_path: Path) -> None:
    for words_, status, said in [
        (("export", str(uuid4()), "-o", str(tmp_path / "x.zip")), 1, "no such task"),
        (("export", "nonsense", "-o", str(tmp_path / "x.zip")), 2, "no task id"),
        (("replay", str(tmp_path / "absent.zip")), 1, "There is no file"),
        (("replay", __file__.replace(".py", ".zip")), 1, "There is no file"),
    ]:
        done = stack.overline(*words_)
        assert done.returncode == status, done.stderr
        assert said in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "x.zip").exists()
