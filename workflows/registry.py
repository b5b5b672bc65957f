"""Every workflow there is: what workers run and what the replayer knows."""

from __future__ import annotations

from collections.abc import Sequence

from workflows.agent_task import AgentTask
from workflows.batch import Batch
from workflows.call_task import CallTask
from workflows.deliver_webhook import DeliverWebhook
from workflows.housekeeping import Housekeeping
from workflows.ingest import IngestDocument
from workflows.map_task import MapTask
from workflows.register_tools import RegisterTools
from workflows.scheduled_task import ScheduledTask
from workflows.session import Session

__all__ = ["PASSED_THROUGH", "WORKFLOWS"]

WORKFLOWS: Sequence[type] = (
    AgentTask,
    CallTask,
    MapTask,
    Batch,
    IngestDocument,
    RegisterTools,
    ScheduledTask,
    Session,
    DeliverWebhook,
    Housekeeping,
)

#: Modules the sandbox shares with its host: reading them again for every workflow costs time and
#: proves nothing.
PASSED_THROUGH = ("pydantic", "pydantic_core", "annotated_types", "settings", "cryptography")
