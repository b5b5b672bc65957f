"""How FastAPI traces our requests: the one argument ``FastAPI(telemetry=…)`` needs.

FastAPI opens the server span itself when a tracer provider is set. Code must not extract headers
again (that makes a second span); who may rule that span is decided in ``boundary``.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from fastapi.telemetry import TelemetryConfig

__all__ = ["fastapi_telemetry"]

_UNTRACED_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})

# The path of the codec endpoint holds its capability token, which must not get on a span.
_UNTRACED_PREFIXES: Final = ("/codec",)


def fastapi_telemetry() -> TelemetryConfig:
    """Return FastAPI's telemetry configuration: one span a request, nothing else.

    Probes are left out, as they would be most of all traces. Keep secrets out of query strings:
    FastAPI records them.
    """
    return {
        "tracing": True,
        "metrics": False,
        "logs": False,
        # Else each dependency, endpoint and serialisation has a span.
        "operation_spans": False,
        # Exporters are set by `setup_tracing` alone, not by variables in the environment.
        "auto_configure": False,
        "exclude": _untraced,
    }


def _untraced(scope: MutableMapping[str, Any]) -> bool:
    path = str(scope.get("path", ""))
    return path in _UNTRACED_PATHS or path.startswith(_UNTRACED_PREFIXES)
