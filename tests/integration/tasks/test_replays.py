"""Whatever the tests have done to this stack so far, its histories replay."""

from __future__ import annotations

from collections import Counter

from temporalio.client import Client

from tests.integration.running import RunningStack
from tests.integration.tasks.caller import Caller, choose, say
from tests.integration.tasks.histories import assert_replays
from workflows.registry import WORKFLOWS

# Other tests start workflows of their own in the same Temporal.
OURS = "CloseTime is not null AND WorkflowType IN ({})".format(
    ", ".join(f'"{workflow.__name__}"' for workflow in WORKFLOWS)
)


async def test_every_closed_workflow_of_the_stack_replays(
    caller: Caller, stack: RunningStack
) -> None:
    question = choose({"tool": "calculator", "expression": "2+3"}) + say("Five.")
    task = await caller.answered(question, model="scripted", tools=[{"name": "calculator"}])
    client = await Client.connect(stack.settings.temporal_address)
    closed = [
        (workflow.id, workflow.workflow_type)
        async for workflow in client.list_workflows(OURS, limit=150)
    ]
    assert f"task-{task['id']}" in [workflow_id for workflow_id, _ in closed]
    assert Counter(kind for _, kind in closed)["AgentTask"] > 0
    await assert_replays(stack, [workflow_id for workflow_id, _ in closed])
