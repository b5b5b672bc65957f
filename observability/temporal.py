"""Temporal's native core: its log becomes lines of ours, and its workers say that they live."""

from __future__ import annotations

import logging
from datetime import timedelta

from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

__all__ = ["WORKER_HEARTBEAT", "install_runtime"]

# How often a worker tells Temporal that it lives; by default once a minute. Who asks why a task is
# not moving should not wait longer than that for the news that its worker died.
WORKER_HEARTBEAT = timedelta(seconds=5)


def install_runtime() -> None:
    """Make a runtime the default whose log goes to the logger ``temporalio.core``.

    Call once, before the process's first Temporal client.
    """
    forwarding = LogForwardingConfig(
        logger=logging.getLogger("temporalio.core"), append_target_to_name=False
    )
    level = TelemetryFilter(core_level="WARN", other_level="ERROR")
    telemetry = TelemetryConfig(logging=LoggingConfig(filter=level, forwarding=forwarding))
    Runtime.set_default(
        Runtime(telemetry=telemetry, worker_heartbeat_interval=WORKER_HEARTBEAT),
        error_if_already_set=False,
    )
