"""Replaying a history against today's workflow code: the work behind `overline replay`."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from api.cli.debugger import StopAtStart
from api.cli.payloads import fetch_in_place
from api.cli.shelf import opened_shelf
from settings import Settings
from store.errors import StoreError
from workflows.client import data_converter
from workflows.codec import ENCODING
from workflows.large_payloads import REFERENCE_TYPE, PayloadMissing, capped_converter
from workflows.registry import PASSED_THROUGH, WORKFLOWS

__all__ = ["Replay", "replay_history"]

_ENCRYPTED = base64.b64encode(ENCODING).decode()
_BUILD = "replayed"
_REFERENCE = base64.b64encode(REFERENCE_TYPE).decode()
_NAMED_EVENT = re.compile(r"HistoryEvent\(id: (\d+)")
_TYPE = re.compile(r'r#type: "((?:[^"\\]|\\.)*)"')
# What Temporal is told of a failure whose words are encrypted.
_ENCODED = "Encoded failure"
_REASON = re.compile(r'message: "((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Replay:
    """What a replay showed.

    Attributes:
        workflow_id: Workflow the history is of.
        events: Number of events in it.
        replays: Whether today's code makes the same decisions.
        divergence: Where it does not, in Temporal's words; None when it replays.
        event: The recorded event at which it does not, or the first of the decision that differs;
            None when it replays.
    """

    workflow_id: str
    events: int
    replays: bool
    divergence: str | None = None
    event: int | None = None

    @property
    def reason(self) -> str:
        """The divergence in one sentence."""
        text = self.divergence or ""
        said, kind = _REASON.search(text), _TYPE.search(text)
        parts = [found.group(1).replace("\\", "") for found in (kind, said) if found]
        return ": ".join(part for part in parts if part and part != _ENCODED) or text


async def replay_history(
    settings: Settings,
    history: WorkflowHistory,
    *,
    namespace: str | None = None,
    stop_at_start: bool = False,
) -> Replay:
    """Replay one history.

    Args:
        settings: The key ring decrypts the payloads.
        history: The history, encrypted or in clear.
        namespace: Namespace it was recorded in; none: that of the settings.
        stop_at_start: Stop in the workflow's first line under pdb, on this terminal.
    """
    try:
        history = await _whole(settings, history)
    except (PayloadMissing, StoreError) as missing:
        # Within a replay it would be an encoded failure of a workflow task.
        return Replay(
            workflow_id=history.workflow_id,
            events=len(history.events),
            replays=False,
            divergence=f"{type(missing).__name__}: {missing}",
        )
    replayer = _replayer(settings, history, namespace, stop_at_start)
    with _silence():
        failure = await _failure_of(replayer, history)
        event = None
        if failure is not None:
            named = _NAMED_EVENT.search(str(failure))
            event = int(named.group(1)) if named else await _first_different(replayer, history)
    return Replay(
        workflow_id=history.workflow_id,
        events=len(history.events),
        replays=failure is None,
        divergence=None if failure is None else f"{type(failure).__name__}: {failure}",
        event=event,
    )


async def _whole(settings: Settings, history: WorkflowHistory) -> WorkflowHistory:
    """Return the history with what was too large for it.

    Raises:
        PayloadMissing: It is not kept any more, or elsewhere.
        StoreError: Postgres does not answer.
    """
    if _REFERENCE not in history.to_json():
        return history
    message = History(events=history.events)
    async with opened_shelf(settings) as shelf:
        await fetch_in_place(message, shelf)
    return WorkflowHistory(history.workflow_id, list(message.events))


def _replayer(
    settings: Settings, history: WorkflowHistory, namespace: str | None, stop_at_start: bool
) -> Replayer:
    return Replayer(
        workflows=WORKFLOWS,
        # Payloads are bound to their namespace.
        namespace=namespace or settings.temporal_namespace,
        data_converter=_converter(settings, history),
        # pdb looks at what the sandbox forbids; there is nothing to protect while one looks.
        workflow_runner=UnsandboxedWorkflowRunner() if stop_at_start else _sandbox(),
        interceptors=[StopAtStart()] if stop_at_start else [],
        debug_mode=stop_at_start,
        runtime=_quiet_runtime(),
        # Named, because the default reads the code of every module that is loaded: for seconds.
        build_id=_BUILD,
    )


def _sandbox() -> SandboxedWorkflowRunner:
    return SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
    )


@lru_cache(maxsize=1)
def _quiet_runtime() -> Runtime:
    """What went wrong is in the result; the core would print it as well."""
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter="off")))


@contextmanager
def _silence() -> Iterator[None]:
    logger = logging.getLogger("temporalio")
    was, logger.disabled = logger.disabled, True
    children = [logging.getLogger(name) for name in ("temporalio.worker", "temporalio.workflow")]
    levels = [child.level for child in children]
    for child in children:
        child.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.disabled = was
        for child, level in zip(children, levels, strict=True):
            child.setLevel(level)


async def _failure_of(replayer: Replayer, history: WorkflowHistory) -> Exception | None:
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    return result.replay_failure


async def _first_different(replayer: Replayer, history: WorkflowHistory) -> int:
    """Find the decision that differs: the shortest beginning that fails ends with it.

    Temporal does not always name the event.
    """
    events = list(history.events)
    decided = [
        index
        for index, event in enumerate(events)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]
    low, high = 0, len(decided) - 1
    while low < high:
        middle = (low + high) // 2
        # Up to where the next decision begins, what this one decided is all there.
        beginning = WorkflowHistory(history.workflow_id, events[: _end(events, decided[middle])])
        if await _failure_of(replayer, beginning) is None:
            low = middle + 1
        else:
            high = middle
    return int(events[min(decided[low] + 1, len(events) - 1)].event_id) if decided else 1


def _end(events: Sequence[HistoryEvent], decided: int) -> int:
    """Index after the decision's own events."""
    for index in range(decided + 1, len(events)):
        if events[index].event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED:
            return index
    return len(events)


def _converter(settings: Settings, history: WorkflowHistory) -> DataConverter:
    """Histories kept as test data, and those of bundles, are in clear."""
    if _ENCRYPTED in history.to_json():
        return data_converter(settings)
    return DataConverter(payload_converter_class=capped_converter(settings.payload_max_bytes))
