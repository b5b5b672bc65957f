"""Which workers are silent: a poll lasts a minute, and tells nothing of one that died in it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from temporalio.api.workflowservice.v1 import ListWorkersRequest
from temporalio.client import Client
from temporalio.service import RPCError

from observability.temporal import WORKER_HEARTBEAT

__all__ = ["silent_workers"]

# So many heartbeats may get lost, or wait on a machine under load.
_SILENT = 4 * WORKER_HEARTBEAT
_MOST_WORKERS = 1_000


async def silent_workers(client: Client, *, limit: timedelta) -> frozenset[str]:
    """Return the identities of workers that said that they live, and do not say so any more.

    A server that keeps no list of workers is no reason to know less than before: then it is empty.
    """
    try:
        answer = await client.workflow_service.list_workers(
            ListWorkersRequest(namespace=client.namespace, page_size=_MOST_WORKERS), timeout=limit
        )
    except RPCError:
        return frozenset()
    newest: dict[str, datetime] = {}
    for each in answer.workers_info:
        heartbeat = each.worker_heartbeat
        at = heartbeat.heartbeat_time.ToDatetime(tzinfo=UTC)
        # A process has a worker for each of its queues, all of one name.
        known = newest.setdefault(heartbeat.worker_identity, at)
        newest[heartbeat.worker_identity] = max(known, at)
    now = datetime.now(UTC)
    return frozenset(name for name, at in newest.items() if now - at > _SILENT)
