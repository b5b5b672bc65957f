"""Brings the log of Temporal's native core into our lines; by itself it writes text to stdout."""

from __future__ import annotations

import logging

from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

__all__ = ["install_runtime"]


def install_runtime() -> None:
    """Make a runtime the default whose log goes to the logger ``temporalio.core``.

    Call once, before the process's first Temporal client.
    """
    forwarding = LogForwardingConfig(
        logger=logging.getLogger("temporalio.core"), append_target_to_name=False
    )
    level = TelemetryFilter(core_level="WARN", other_level="ERROR")
    telemetry = TelemetryConfig(logging=LoggingConfig(filter=level, forwarding=forwarding))
    Runtime.set_default(Runtime(telemetry=telemetry), error_if_already_set=False)
