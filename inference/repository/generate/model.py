"""What Triton loads for a generating model: a door to `inference.server`."""

import sys
from pathlib import Path
from typing import Any

import triton_python_backend_utils as backend

# Triton starts the stub isolated: PYTHONPATH is not read, so the code is found beside the
# repository this file lies in.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "code"))

from inference.door import live_and_die_with_triton, string_parameters
from inference.server import Server


class TritonPythonModel:
    """The class Triton's Python backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the model."""
        live_and_die_with_triton()
        self._server = Server(backend, string_parameters(args["model_config"]))

    def execute(self, requests: list[Any]) -> None:
        """Hands requests over; answers are sent from elsewhere."""
        self._server.execute(requests)

    def finalize(self) -> None:
        """Unloads the model."""
        self._server.finalize()
