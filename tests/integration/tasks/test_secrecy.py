"""Prompts, tool arguments, answers and failures are in no history and in no log file."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from google.protobuf.message import Message
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    GetWorkflowExecutionHistoryRequest,
    ListWorkflowExecutionsRequest,
)
from temporalio.client import Client, WorkflowFailureError

from tests.integration.running import RunningStack
from tests.integration.tasks.caller import Caller, choose, say, words
from workflows.client import connect_kwargs
from workflows.contracts import TaskOutcome

MODEL = "scripted"


def _canary(what: str) -> str:
    return f"canary{what}{uuid4().hex}"


class Secrets:
    """Words that only a caller may read, each for one way they might leak."""

    def __init__(self) -> None:
        self.prompt = _canary("prompt")
        self.system = _canary("system")
        self.query = _canary("query")
        self.answer = _canary("answer")
        self.document = _canary("document")
        self.failure = _canary("failure")
        self.cancelled = _canary("cancelled")

    @property
    def all(self) -> list[bytes]:
        return [word.encode() for word in vars(self).values()]

    def found_in(self, data: bytes) -> list[bytes]:
        """Return the secrets in raw bytes, in whole or in their first half."""
        return [word for word in self.all if word in data or word[: len(word) // 2 + 10] in data]


async def _run_everything(caller: Caller, secrets: Secrets) -> dict[str, str]:
    """Run tasks that carry the secrets; returns their ids by kind."""
    name = f"c{uuid4().hex}"
    await caller.request("POST", "/v1/collections", json={"name": name})
    body = {"external_id": "d", "title": "d", "text": f"The word is {secrets.document}."}
    document = (await caller.request("POST", f"/v1/collections/{name}/documents", json=body)).json()
    question = (
        f"{secrets.prompt} "
        + choose({"tool": "search", "query": secrets.query})
        + say(f"It is {secrets.answer}.")
    )
    good = await caller.answered(
        question,
        system=secrets.system,
        model=MODEL,
        collections=[name],
        tools=[{"name": "search", "must_call": True}],
    )
    cached = await caller.answered(
        question,
        system=secrets.system,
        model=MODEL,
        collections=[name],
        tools=[{"name": "search", "must_call": True}],
    )
    # The engine's complaint repeats the words it cannot read.
    refused = await caller.submit(say("x", **{secrets.failure: 1}), model=MODEL)
    task = await caller.ended(refused)
    assert secrets.failure in task["error"]["message"]
    cancelled = await caller.submit(
        say(f"{secrets.cancelled} " + words(100), pace_ms=20), model=MODEL
    )
    async with caller.watch(cancelled) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > len(secrets.cancelled))
        await caller.cancel(cancelled)
        await watcher.to_end()
    return {
        "good": f"task-{good['id']}",
        "cached": f"task-{cached['id']}",
        "refused": f"task-{refused}",
        "cancelled": f"task-{cancelled}",
        "ingested": str(document["workflow_id"]),
    }


async def _raw(client: Client, workflow_id: str) -> tuple[list[Message], bytes]:
    """Return a workflow's events and everything Temporal tells of it, undecoded."""
    service, namespace = client.workflow_service, client.namespace
    history = GetWorkflowExecutionHistoryRequest(namespace=namespace)
    history.execution.workflow_id = workflow_id
    answer = await service.get_workflow_execution_history(history)
    description = DescribeWorkflowExecutionRequest(namespace=namespace)
    description.execution.workflow_id = workflow_id
    described = await service.describe_workflow_execution(description)
    return list(answer.history.events), (answer.SerializeToString() + described.SerializeToString())


def _stored_files(folder: Path) -> list[Path]:
    """Every file of the stack but the database, which is what keeps the words, and the models."""
    skipped = {"pg", "engine", "models", "backends"}
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and not skipped & set(path.relative_to(folder).parts)
    ]


async def test_histories_hold_ciphertext_only_and_logs_hold_no_words(
    caller: Caller, stack: RunningStack
) -> None:
    secrets = Secrets()
    workflows = await _run_everything(caller, secrets)
    settings = stack.settings
    client = await Client.connect(settings.temporal_address, namespace=settings.temporal_namespace)
    kinds = set()
    for kind, workflow_id in workflows.items():
        events, raw = await _raw(client, workflow_id)
        assert secrets.found_in(raw) == [], kind
        # What is not a secret is there: the search looks at the right bytes.
        assert workflow_id.encode() in raw
        kinds |= {EventType.Name(event.event_type) for event in events}  # type: ignore[attr-defined]
    assert {
        "EVENT_TYPE_ACTIVITY_TASK_FAILED",
        "EVENT_TYPE_WORKFLOW_EXECUTION_FAILED",
        "EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED",
        "EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED",
    } <= kinds

    # They are in the histories, for those who have the key: nothing above looked into the void.
    reader = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
    with pytest.raises(WorkflowFailureError) as refused:
        await reader.get_workflow_handle(workflows["refused"]).result()
    assert secrets.failure in str(refused.value.cause)
    outcome = await reader.get_workflow_handle(workflows["good"], result_type=TaskOutcome).result()
    assert secrets.answer in (outcome.answer or "")

    listed = await client.workflow_service.list_workflow_executions(
        ListWorkflowExecutionsRequest(namespace=client.namespace, page_size=1000)
    )
    visible = listed.SerializeToString()
    assert all(workflow_id.encode() in visible for workflow_id in workflows.values())
    assert secrets.found_in(visible) == []

    files = _stored_files(stack.folder)
    names = {path.name for path in files}
    assert {"temporal.db", "worker-1.log", "api.log", "triton.log", "postgres.log"} <= names
    leaks = {path: found for path in files if (found := secrets.found_in(path.read_bytes()))}
    assert leaks == {}
