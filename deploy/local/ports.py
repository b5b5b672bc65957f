"""Ports of the embedded stack: the usual ones, and free ones when those are taken."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping

__all__ = ["DEFAULT_PORTS", "choose_ports", "free_port", "is_free"]

DEFAULT_PORTS: Mapping[str, int] = {
    "api": 8080,
    "temporal": 7233,
    "temporal_ui": 8233,
    "temporal_http": 7243,
    "temporal_metrics": 7253,
    "postgres": 5433,
    "triton_grpc": 8001,
    "triton_http": 8000,
    "triton_metrics": 8002,
}


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on ``port`` now."""
    for family, address in ((socket.AF_INET, host), (socket.AF_INET, "0.0.0.0")):  # noqa: S104
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As the servers do: a connection in TIME_WAIT does not make a port taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    return False
                raise
    return True


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def choose_ports(wanted: Mapping[str, int] = DEFAULT_PORTS) -> dict[str, int]:
    """Return a port for every name: the wanted one, or a free one when it is taken or 0."""
    chosen: dict[str, int] = {}
    for name, port in wanted.items():
        if port and port not in chosen.values() and is_free(port):
            chosen[name] = port
            continue
        while (found := free_port()) in chosen.values() or found in wanted.values():
            pass
        chosen[name] = found
    return chosen
