"""Any finished task replays against today's workflow code, or the build says which change broke it.

When a change is meant: `python -m tests.replay.record`.
"""

from __future__ import annotations

from collections import Counter

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from api.cli.replay import replay_history
from deploy.worker import WORKFLOWS
from tests.replay.changed import IngestTwice, OneByOne, WithALayerMore, WithAPause, WithoutTools
from tests.replay.record import KINDS
from tests.replay.recorded import load, recorded_kinds, settings_of_recordings
from workflows.client import data_converter


@pytest.mark.parametrize("kind", recorded_kinds())
async def test_a_recorded_task_replays(kind: str) -> None:
    history = load(kind)
    result = await replay_history(settings_of_recordings(), history)
    assert result.replays, f"{result.divergence}\nmeant? python -m tests.replay.record {kind}"
    assert result.events == len(history.events) > 10


def test_every_kind_of_task_is_recorded() -> None:
    assert recorded_kinds() == sorted(KINDS)


def _events(history: WorkflowHistory) -> Counter[str]:
    return Counter(
        EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history.events
    )


def _activities(history: WorkflowHistory) -> Counter[str]:
    return Counter(
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    )


def test_recordings_are_of_what_their_names_say() -> None:
    """So that a recording that went another way does not stand for the one it should be."""
    activities = {kind: _activities(load(kind)) for kind in recorded_kinds()}
    events = {kind: _events(load(kind)) for kind in recorded_kinds()}
    assert activities["plain"]["generation.generate"] == 1
    assert activities["tools"]["tools.search"] == activities["tools"]["tools.calculator"] == 1
    assert activities["cached"]["generation.generate"] == 0
    assert activities["cached"]["gateway.settle"] == 2
    assert activities["approved"]["approvals.request"] == 1
    assert activities["approved"]["tools.calculator"] == 1
    # One of the four calls was the same again; another one waited for a person.
    assert activities["parallel"]["tools.calculator"] == 2
    assert activities["parallel"]["tools.call"] == activities["parallel"]["approvals.request"] == 1
    assert activities["uncached"]["cache.look_up"] == 0
    assert events["paused"]["MARKER_RECORDED"] == 1
    assert events["paused"]["WORKFLOW_EXECUTION_SIGNALED"] == 2
    assert activities["fallback"]["generation.generate"] == 2
    assert activities["denied"]["generation.generate"] == 2
    assert activities["ingestion"]["retrieval.publish"] == 1
    assert activities["message"]["messages.take"] == 2
    assert activities["session"]["sessions.next"] == 3
    assert events["session"]["CHILD_WORKFLOW_EXECUTION_FAILED"] == 1
    assert activities["scheduled"]["schedules.file"] == 1
    assert activities["webhook"]["webhooks.deliver"] == 1
    assert activities["webhook"]["webhooks.give_up"] == 0
    assert activities["housekeeping"]["housekeeping.payloads"] == 1
    assert activities["housekeeping_files"]["housekeeping.files"] == 1
    # Of four lines at a limit of one, some wait.
    assert events["batch"]["TIMER_FIRED"] >= 1
    assert events["batch_cancelled"]["ACTIVITY_TASK_CANCEL_REQUESTED"] >= 1
    assert events["scheduled"]["START_CHILD_WORKFLOW_EXECUTION_INITIATED"] == 1
    for kind, children in (("sub_agents", 2), ("sub_agent_cancelled", 1), ("map", 4)):
        assert events[kind]["START_CHILD_WORKFLOW_EXECUTION_INITIATED"] == children
    assert events["map"]["CHILD_WORKFLOW_EXECUTION_FAILED"] == 1
    for kind in ("sub_agent_cancelled", "map_cancelled"):
        assert events[kind]["CHILD_WORKFLOW_EXECUTION_CANCELED"] >= 1
        assert events[kind]["WORKFLOW_EXECUTION_CANCELED"] == 1
    for kind in ("cancelled", "cancelled_waiting"):
        assert events[kind]["WORKFLOW_EXECUTION_CANCELED"] == 1
    assert activities["output"]["generation.generate"] == 3
    assert activities["output_invalid"]["generation.generate"] == 5
    for kind in ("budget", "refused", "step_limit", "output_invalid"):
        assert events[kind]["WORKFLOW_EXECUTION_FAILED"] == 1
    for kind in ("parallel", "resumed"):
        attempts = [
            event.activity_task_started_event_attributes.attempt
            for event in load(kind).events
            if event.HasField("activity_task_started_event_attributes")
        ]
        assert max(attempts) > 1


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        (WithALayerMore, "plain"),
        (WithAPause, "plain"),
        (WithoutTools, "tools"),
        (WithoutTools, "resumed"),
        (OneByOne, "parallel"),
        (IngestTwice, "ingestion"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
async def test_a_changed_workflow_is_reported(changed: type, kind: str) -> None:
    history = load(kind)
    result = await _replayer(changed).replay_workflow(history, raise_on_replay_failure=False)
    assert isinstance(result.replay_failure, workflow.NondeterminismError), result.replay_failure
    # And the same history, replayed the same way, is fine as the code stands.
    await _replayer(*WORKFLOWS).replay_workflow(history)


def _replayer(*workflows: type) -> Replayer:
    settings = settings_of_recordings()
    return Replayer(
        workflows=workflows,
        namespace=settings.temporal_namespace,
        data_converter=data_converter(settings),
    )
