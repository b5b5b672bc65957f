"""What every model's `model.py` does on the way in."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

_PARENT_POLL_S = 0.5


def live_and_die_with_triton() -> None:
    """Leaves stopping to Triton, and ends when Triton is gone.

    A signal to the whole process group must not take a model away under Triton, which unloads
    its models when it is asked to end; and when Triton itself is killed, nobody else would end
    its models.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # Not PR_SET_PDEATHSIG: that fires when the thread that started us ends, and Triton's does.
    parent = os.getppid()
    threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)


def string_parameters(model_config: str) -> dict[str, str]:
    """The string parameters of a model configuration given as JSON."""
    parameters = json.loads(model_config).get("parameters", {})
    return {name: value["string_value"] for name, value in parameters.items()}
