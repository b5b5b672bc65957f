"""What every model's `model.py` does on the way in."""

from __future__ import annotations

import json
import signal


def ignore_stop_signals() -> None:
    """Leaves stopping to Triton, which unloads its models when it is asked to end.

    A signal to the whole process group must not take a model away under it.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def string_parameters(model_config: str) -> dict[str, str]:
    """The string parameters of a model configuration given as JSON."""
    parameters = json.loads(model_config).get("parameters", {})
    return {name: value["string_value"] for name, value in parameters.items()}
